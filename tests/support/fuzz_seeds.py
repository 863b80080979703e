"""Valid inputs of every shape that the decoders are fuzzed from, and the columns made to fit a changed header again."""

import random
from math import prod
from typing import Any

import msgpack
import numpy as np

from buffer import Group, Ledger, Row, Span, Trajectory, pack, redis_replies
from buffer.books import Index
from buffer.partials import UNFINISHED, PartialEpisode, Partials
from buffer.row import COLUMN_DTYPES
from buffer.trajectory import FINISH_REASONS

_TEXTS = ("", "gsm8k", "na\u00efve \U0001f600", "line\nline", "\ufffd", "a" * 200)


def a_row(draw: random.Random, *, columns: bool = True) -> Row:
    """A row of 1 to 40 tokens, of any mixture of sampled and given tokens, under one to three versions."""
    num_tokens = draw.choice((1, 2, 7, 8, 9, draw.randrange(1, 41)))
    prompt = draw.randrange(num_tokens + 1)
    mask = np.array([i >= prompt and draw.random() < 0.7 for i in range(num_tokens)], np.bool_)
    sampled, spans = int(mask.sum()), []
    while sampled:
        part = draw.randint(1, sampled)
        version = pack(draw.choice((0, 1, 2**32 - 1)), draw.choice((0, 3, 2**32 - 1)))
        spans.append(Span(version, draw.getrandbits(64), part))
        sampled -= part
    numbers = np.random.default_rng(draw.getrandbits(32))
    return Row(
        token_ids=numbers.integers(0, 2**32, num_tokens, np.uint32),
        mask=mask,
        logprobs=np.where(mask, -numbers.random(num_tokens), 0.0).astype(np.float32),
        spans=tuple(spans),
        num_prompt_tokens=prompt,
        columns={f"c{i}": _column(draw, num_tokens) for i in range(draw.randrange(4))} if columns else {},
    )


def _column(draw: random.Random, num_tokens: int) -> np.ndarray[Any, Any]:
    shape = (num_tokens, *draw.choice(((), (1,), (3,), (2, 2), (0,), (1, 1, 1, 2))))
    return np.zeros(shape, np.dtype(draw.choice(COLUMN_DTYPES)))


def a_trajectory(draw: random.Random, *, columns: bool = True) -> Trajectory:
    """A trajectory of one or two rows, with a reward or with an error."""
    reward = draw.choice((None, 0.0, 1.0, -0.5, 1e-300))
    return Trajectory(
        rows=tuple(a_row(draw, columns=columns) for _ in range(draw.choice((1, 1, 1, 2)))),
        reward=reward,
        reward_error=None if reward is not None else draw.choice(("timeout", UNFINISHED)),
        reward_parts=dict.fromkeys(draw.sample(_TEXTS, draw.randrange(3)), 0.25),
        finish_reason=draw.choice(FINISH_REASONS),
        num_turns=draw.randrange(5),
        extra_info=an_extra(draw),
    )


def an_extra(draw: random.Random) -> dict[str, object]:
    """Free-form data with every JSON type in it."""
    values: tuple[object, ...] = (None, True, 2**64 - 1, -(2**63), 0.1, "text", [1, [2, {"a": []}]], {"k": {"k": 1}})
    return {text: draw.choice(values) for text in draw.sample(_TEXTS, draw.randrange(4))}


def a_group(draw: random.Random) -> Group:
    """A group of one to three trajectories."""
    ordinal = draw.choice((0, 1, 2**31, 2**40))
    trajectories = tuple(a_trajectory(draw) for _ in range(draw.choice((1, 1, 2, 3))))
    return Group(ordinal, draw.randint(1, 9), draw.choice(_TEXTS), trajectories, an_extra(draw))


def parked_group(draw: random.Random) -> Group:
    """The episodes that a worker parks, as they travel."""
    episodes = []
    for index in draw.sample(range(8), draw.choice((1, 1, 2, 3))):
        trajectory = a_trajectory(draw, columns=False)
        done = trajectory.reward_error != UNFINISHED
        episodes.append(PartialEpisode(index, trajectory, done, draw.choice((None, {}, an_extra(draw)))))
    return Partials(tuple(episodes)).to_group(draw.randrange(99), draw.randint(1, 9), "gsm8k")


def a_ledger(draw: random.Random) -> Ledger:
    """The ledger of a checkpoint with a few closed, dead and reopened ordinals."""
    watermark = draw.randrange(3, 20)
    below, above = draw.sample(range(watermark), 3), draw.sample(range(watermark, watermark + 20), 6)
    return Ledger(
        branch=2,
        number=draw.randrange(100),
        watermark=watermark,
        closed={"consumed": tuple(above[:2]), "filtered": tuple(above[2:4]), "discarded": tuple(above[4:5])},
        below={"consumed": watermark - 3, "filtered": 0, "discarded": 1},
        dead=(below[0], above[5]),
        reopened=tuple(below[1:]),
        forks={1: (0, 0), 2: (1, draw.randrange(9))},
        reasons={"stale": 3, "zero_variance": 1},
    )


def a_card(draw: random.Random) -> bytes:
    """A card of the ledger as the scripts pack it."""
    group = a_group(draw)
    index = Index(
        num_bytes=draw.randrange(1 << 20),
        xxh3="0123456789abcdef",
        ranges=tuple((branch, *ends) for branch, ends in group.number_ranges().items()),
        tokens=tuple(one.num_tokens for one in group.trajectories),
        sampled=tuple(one.num_sampled for one in group.trajectories),
        rewards=tuple(one.reward for one in group.trajectories),
        data_source=group.data_source,
    )
    known = {
        "state": b"ready",
        "token": b"00ff" * 8,
        "worker": b"worker-3",
        "key": b"payload:run:0.1:" + b"00ff" * 8,
        "reason": b"",
        "error": b"",
        "parked": b"",
        "num_bytes": index.num_bytes,
        "ranges": redis_replies.ranges_blob(index),
        "info": redis_replies.info_blob(index),
    }
    return bytes(msgpack.packb([known.get(name, 1) for name in redis_replies._FIELDS]))


def fit_data(head: Any, draw: random.Random) -> None:
    """Give a changed header as many bytes of columns as it asks for, if it asks for a sensible number."""
    try:
        rows = [row for one in head["trajectories"] for row in one["rows"]]
        tokens = sum(row["num_tokens"] for row in rows)
        sizes = [4 * tokens, 4 * tokens, (tokens + 7) // 8]
        sizes += [np.dtype(dtype).itemsize * prod(shape) for row in rows for dtype, shape in row["columns"].values()]
        size = sum(n + -n % 8 for n in sizes)
        if 0 <= size < 1 << 14:
            head["data"] = (head["data"] + draw.randbytes(max(0, size - len(head["data"]))))[:size]
            head["data_bytes"] = size
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return  # the header is no header any more, which is what was wanted
