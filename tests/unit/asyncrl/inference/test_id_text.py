"""Ids are written as json writes them, and those of no vocabulary are not written."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.inference.id_text import IdText

IDS = {size: IdText(size) for size in (1, 10, 11, 70_000)}


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(sorted(IDS)))
def test_ids_are_written_as_json_does(data: st.DataObject, size: int) -> None:
    ids = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=30))
    assert b"[%b]" % IDS[size].write(ids) == json.dumps(ids, separators=(",", ":")).encode()
    assert IDS[size].write(tuple(np.array(ids))) == IDS[size].write(ids), "numpy's integers are integers"


@pytest.mark.parametrize("ids", [[], [-1], [3, 11], [2**32], [2**32 + 3], [2**70]])
def test_what_is_no_id_is_told(ids: list[int]) -> None:
    with pytest.raises(ValueError, match=r"there is no id|outside 0\.\.10"):
        IDS[11].write(ids)


@pytest.mark.parametrize("ids", [[1.0], ["1"], [None]])
def test_what_is_no_number_is_a_fault(ids: list[int]) -> None:
    with pytest.raises(TypeError):
        IDS[11].write(ids)
