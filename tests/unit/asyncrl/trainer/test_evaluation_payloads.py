"""Held-out groups whose payload cannot be read: they go back to be made again, and end no trainer."""

import pytest

from asyncrl.trainer.evaluation import fetch_all
from buffer import BufferConfig, Claim, ReplayBuffer
from buffer.errors import CorruptPayload, UnknownSchema
from buffer.versions import pack
from tests.support.groups import group_for

VERSION = pack(1, 0)


@pytest.mark.parametrize("error", [CorruptPayload("damaged"), UnknownSchema("the payload has schema 2")])
def test_a_payload_that_cannot_be_read_is_made_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = ReplayBuffer.in_memory("toy", BufferConfig(max_bytes=64 << 20, max_group_bytes=1 << 20))
    buffer.recover("n", None, number=0, limit=0, groups_per_version=1)
    ledger = buffer.open_evaluation(VERSION, num_prompts=1, group_size=2)
    claim = ledger.reserve("w")
    assert isinstance(claim, Claim)
    ledger.put(claim, group_for(claim, VERSION))

    def unreadable(entry: object) -> object:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(ledger, "fetch", unreadable)
        assert fetch_all(ledger, VERSION, 1) is None
    again = ledger.reserve("w")
    assert isinstance(again, Claim)
    assert (again.ordinal, again.attempt) == (0, 2)
    ledger.put(again, group_for(again, VERSION))
    assert fetch_all(ledger, VERSION, 1) == [group_for(again, VERSION)]
