"""The judge of the fuzz of frames notices what it is there for; test_wire_fuzz.py runs it on damaged frames."""

import random

import pytest

from tests.support.fuzz_frames import Frames


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_write_outside_a_wrong_gain_and_wrong_words_are_noticed(width: int) -> None:
    frames = Frames(width)
    blob = frames.valid(random.Random(0))
    frame, guarded, gain = frames.decode(blob)
    frames.check((frame, guarded, gain))
    for place, what in ((0, "before"), (-1, "behind")):
        bad = guarded.copy()
        bad[place] ^= 1
        with pytest.raises(AssertionError, match=f"a write {what}"):
            frames.check((frame, bad, gain))
    with pytest.raises(AssertionError, match="the gain"):
        frames.check((frame, guarded, gain + 1))
    frames.published[frame.digest_after] = frames.old
    with pytest.raises(AssertionError, match="wrong words"):
        frames.check((frame, guarded, gain))


def test_damage_reaches_what_lies_behind_the_checks() -> None:
    """Some frames are refused for their planes, which only bytes inside good compression and seals can show, and some
    are accepted though they are no version's."""
    frames, draw = Frames(2), random.Random(1)
    valid = [frames.valid(draw) for _ in range(8)]
    accepted, messages = 0, []
    for _ in range(400):
        try:
            found = frames.decode(frames.damage(draw.choice(valid), draw, valid))
        except ValueError as error:
            messages.append(str(error))
        else:
            frames.check(found)
            accepted += 1
    assert accepted > 20
    for field in ("escapes in the value plane", "position of the last changed word", "dense sizes", "frame bytes"):
        assert any(field in message for message in messages), field
