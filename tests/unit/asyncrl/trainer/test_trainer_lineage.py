"""Lags along the tree of versions, and spans whose weights nobody of this run published."""

import numpy as np
import pytest

from asyncrl.trainer.lineage import Lineage, digests_from_json, digests_to_json
from buffer import Group, Row, Span, Trajectory
from buffer.versions import pack

FORKS = {1: (0, 0), 2: (1, 6), 3: (2, 9)}


def group(*spans):
    count = sum(span.num_tokens for span in spans)
    ids = np.arange(count + 1, dtype=np.uint32)
    mask = ids > 0
    row = Row(ids, mask, np.zeros(count + 1, dtype=np.float32), spans, 1)
    return Group(4, 2, "toy", (Trajectory(rows=(row,), reward=0.0),))


@pytest.mark.parametrize(
    ("version", "lag"),
    [
        (pack(3, 12), 0),
        (pack(3, 10), 2),
        (pack(2, 9), 3),  # the fork: ours too
        (pack(2, 11), 5),  # two steps of a dead branch, and three from the fork to us
        (pack(1, 5), 7),
        (pack(1, 8), 8),  # 2 back to the fork at 6, then 6 to us
        (pack(0, 0), 12),
        (pack(7, 2), 14),  # a branch that nobody knows shares only the root
    ],
)
def test_lag_is_the_distance_in_the_tree(version, lag):
    assert Lineage(branch=3, number=12, step=12, forks=FORKS).lag_of(version) == lag


def test_spans_are_held_against_the_published_digests():
    lineage = Lineage(branch=1, number=2, step=2, forks=FORKS, digests={pack(1, 1): 0xA})
    log = {pack(1, 0): 0xB}.get
    assert lineage.foreign_span(group(Span(pack(1, 1), 0xA, 2), Span(pack(1, 0), 0xB, 1)), log) == ""
    wrong = lineage.foreign_span(group(Span(pack(1, 1), 0xC, 2)), log)
    assert "group 4.2 has tokens of version 1.1 with digest 000000000000000c" in wrong
    assert "knows digest 000000000000000a" in wrong
    assert "no such version" in lineage.foreign_span(group(Span(pack(1, 9), 0xC, 2)), log)


def test_a_span_without_a_digest_is_taken_only_if_the_log_has_none():
    lineage = Lineage(branch=1, number=2, step=2, forks=FORKS, digests={pack(1, 1): 0xA})
    assert lineage.foreign_span(group(Span(pack(1, 0), 0, 1)), lambda version: None) == ""
    assert lineage.foreign_span(group(Span(pack(1, 1), 0, 1)), lambda version: None) != ""


def test_digests_survive_a_checkpoint():
    digests = {pack(1, 5): 2**64 - 1, pack(0, 0): 0}
    assert digests_to_json(digests) == {"1.5": "ffffffffffffffff", "0.0": "0000000000000000"}
    assert digests_from_json(digests_to_json(digests)) == digests
