"""Groups with everything that a group can hold, for tests of what must come back bit for bit."""

import numpy as np

from buffer import Group, Row, Span, Trajectory, pack
from buffer.row import COLUMN_DTYPES

VERSIONS = (pack(1, 3), pack(2, 5))


def rich_row(seed: int, versions: tuple[int, ...] = VERSIONS, *, columns: bool = True) -> Row:
    """A row of two prompt tokens, and three sampled under each version; with columns of every dtype and odd shapes."""
    rng = np.random.default_rng(seed)
    num_tokens = 2 + 3 * len(versions)
    mask = np.arange(num_tokens) >= 2
    logprobs = np.where(mask, -rng.random(num_tokens), 0).astype(np.float32)
    logprobs[0] = -0.0
    return Row(
        token_ids=rng.integers(0, 1 << 32, num_tokens, dtype=np.uint32),
        mask=mask,
        logprobs=logprobs,
        spans=tuple(Span(version, (1 << 64) - 1 - seed, 3) for version in versions),
        num_prompt_tokens=2,
        columns=extra_columns(rng, num_tokens) if columns else {},
    )


def extra_columns(rng: np.random.Generator, num_tokens: int) -> dict[str, np.ndarray]:
    """One column of every dtype, [T, 2]; one of NaNs with payloads; one without elements."""
    found = {}
    for name in COLUMN_DTYPES:
        kind = np.dtype(name)
        raw = rng.integers(0, 2 if name == "bool" else 256, num_tokens * 2 * kind.itemsize, dtype=np.uint8)
        found[f"of_{name}"] = raw.view(kind).reshape(num_tokens, 2)
    found["nan"] = np.full(num_tokens, 0x7FC00123, np.uint32).view(np.float32)
    found["nothing"] = np.empty((num_tokens, 0), np.float32)
    return found


def rich_group(
    ordinal: int, attempt: int = 1, *, num_trajectories: int = 3, versions: tuple[int, ...] = VERSIONS
) -> Group:
    """A group whose trajectories differ in rows, rewards, reasons and what they carry."""
    trajectories = []
    for i in range(num_trajectories):
        failed = i % 3 == 1
        trajectories.append(
            Trajectory(
                rows=tuple(rich_row(10 * ordinal + i + k, versions, columns=k == 0) for k in range(1 + i % 2)),
                reward=None if failed else 0.1 * i - 0.05,
                reward_error="the judge timed out after 30 s" if failed else None,
                reward_parts={} if failed else {"format": -0.0, "answer": 1e-300},
                finish_reason=("stop", "length", "abort", "env")[i % 4],
                num_turns=1 + i,
                policy="policy",
                extra_info={
                    "text": "half \u00e9 \U0001f600 and a \x00 byte",
                    "large": (1 << 64) - 1,
                    "nested": [{"a": None}],
                },
            )
        )
    extra = {"index": 17, "small": -(1 << 63), "float": 0.1}
    return Group(ordinal, attempt, "arithmetic", tuple(trajectories), extra)
