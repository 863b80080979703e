"""What other buffers changed or refused on the way, with each case's small input, there and back (B010 to B015)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from buffer import Group, Trajectory, TrajectoryError, pack
from buffer.wire import decode, encode
from tests.support.groups import row

VERSION = pack(1, 4)


def sample(**fields: Any) -> Trajectory:
    return Trajectory(**{"rows": (row([VERSION]),), "reward": 0.0, **fields})


def there_and_back(*trajectories: Trajectory) -> tuple[Trajectory, ...]:
    group = Group(0, 1, "cases", trajectories)
    again = decode(encode(group), max_bytes=1 << 20)
    assert again == group
    return again.trajectories


def extra(info: Mapping[Any, object]) -> Mapping[str, object]:
    """What comes back of free-form data; both homes of a group keep its encoded bytes, so this is all there is."""
    return there_and_back(sample(extra_info=info))[0].extra_info


@pytest.mark.parametrize("turns", [(1, 3), (1, 1)])
def test_conversations_of_any_lengths_stay_two_lists(turns: tuple[int, int]) -> None:
    """B010: two samples of one and three turns, then two of one turn each."""
    messages = [[{"role": "user", "content": f"turn {i}"} for i in range(count)] for count in turns]
    back = there_and_back(*(sample(extra_info={"messages": one}, num_turns=len(one)) for one in messages))
    assert len(back) == 2
    assert [one.extra_info["messages"] for one in back] == messages
    rows = there_and_back(sample(rows=(row([VERSION] * turns[0]), row([VERSION] * turns[1]))))[0].rows
    assert [len(one.token_ids) for one in rows] == [2 + 3 * count for count in turns]


def test_scalars_of_numpy_come_back_as_plain_numbers() -> None:
    """B011: a reward of np.float32, a length of np.int64, a flag of np.bool_; an object is refused by its path."""
    (back,) = there_and_back(
        sample(
            reward=np.float32(0.5),
            reward_parts={"answer": np.float64(0.25)},
            num_turns=np.int64(7),
            extra_info={"ok": np.bool_(True), "len": np.int64(7), "share": np.float16(0.5)},
        )
    )
    assert (back.reward, back.num_turns, dict(back.reward_parts)) == (0.5, 7, {"answer": 0.25})
    assert dict(back.extra_info) == {"ok": True, "len": 7, "share": 0.5}
    assert [type(value) for value in (back.reward, back.num_turns)] == [float, int]
    assert [type(value) for value in back.extra_info.values()] == [bool, int, float]
    with pytest.raises(TrajectoryError, match=r"Trajectory\.extra_info\.judge\.model is a object"):
        sample(extra_info={"judge": {"model": object()}})


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63), 0])
def test_integers_of_64_bits_come_back_exactly(number: int) -> None:
    """B012: 18446744073709551615 always comes back."""
    assert extra({"seed": number}) == {"seed": number}


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_larger_integers_are_refused_where_they_are_made(number: int) -> None:
    """B012: 2**64 and -2**63-1 fail before anything is sent, by the name of their field."""
    with pytest.raises(TrajectoryError, match=rf"Trajectory\.extra_info\.seed = {number} does not fit into 64 bits"):
        sample(extra_info={"seed": number})


def test_tuples_come_back_as_lists_and_integer_keys_as_text() -> None:
    """B013: the form is documented in `json_safe_map` and the same wherever the group was kept."""
    assert extra({1: "x", "t": (1, 2)}) == {"1": "x", "t": [1, 2]}


def test_half_an_emoji_becomes_a_replacement_character() -> None:
    """B014: a lone surrogate, in a text, in a key and in an error."""
    assert extra({"text": "ok \ud83d", "k\ude00": "\ud83d\ude00"}) == {"text": "ok \ufffd", "k\ufffd": "\ufffd\ufffd"}
    (failed,) = there_and_back(sample(reward=None, reward_error="cut at \ud83d"))
    assert failed.reward_error == "cut at \ufffd"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.float32("nan"), -np.inf])
def test_a_reward_that_is_no_number_is_refused_by_its_name(bad: float) -> None:
    """B015: NaN becomes neither 0 nor null."""
    with pytest.raises(TrajectoryError, match=r"Trajectory\.reward = -?(nan|inf) is not a finite number"):
        sample(reward=bad)
    with pytest.raises(TrajectoryError, match=r"Trajectory\.reward_parts\.answer"):
        sample(reward_parts={"answer": bad})
    with pytest.raises(TrajectoryError, match=r"Trajectory\.extra_info\.score"):
        sample(extra_info={"score": bad})
