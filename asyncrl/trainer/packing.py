"""Which rows go through the model together: lengths and a token budget in, lists of rows out. No tensors here."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

GRID_TO_BUDGET = 8
"""Losses see a micro-batch as a grid of rows by the longest row: at most so many times the budget's tokens."""

KEYS_TO_BUDGET = 4
"""Keys and values of a prompt are laid out for each row that looks at it: at most so many times the budget's tokens."""


def packed(lengths: Ints, budget: int) -> Sequence[Ints]:
    """Fill micro-batches with rows that are laid one after another: as few as first-fit-decreasing needs.

    A row goes into the first micro-batch that has room for it, the longest row first: at most 11/9 of the smallest
    possible number plus 6/9 (Dosa 2007). There is room only while the grid of rows by the longest row stays small, so
    that one long row does not make the losses of a thousand short ones expensive.

    Args:
        lengths: [R] tokens of each row.
        budget: most tokens of a micro-batch; a row that is longer by itself is a micro-batch of its own.
    Returns:
        Places in `lengths` by micro-batch, each place once; within a micro-batch the longest row comes first, and of
        equal rows the first.
    """
    order = np.argsort(-lengths, kind="stable")
    if len(order) and lengths.sum() <= budget and len(order) * int(lengths[order[0]]) <= GRID_TO_BUDGET * budget:
        return [order]  # what the loop comes to, row by row
    room, rows_left = (np.zeros(len(lengths), dtype=np.int64) for _ in range(2))
    parts: list[list[int]] = []
    for row in order.tolist():
        length = int(lengths[row])
        fits = (room[: len(parts)] >= length) & (rows_left[: len(parts)] > 0)
        first = int(fits.argmax()) if fits.any() else len(parts)
        if first == len(parts):
            parts.append([])
            room[first], rows_left[first] = budget, GRID_TO_BUDGET * budget // length
        parts[first].append(row)
        room[first] -= length
        rows_left[first] -= 1
    return [np.array(part, dtype=np.int64) for part in parts]


def packed_by_prompt(lengths: Ints, prompts_R: Ints, prompt_lengths_R: Ints, budget: int) -> Sequence[Ints]:
    """As `packed`, for rows whose prompt counts once in a micro-batch: rows of one prompt come one after another.

    Args:
        lengths: [R] tokens of each row, its prompt included.
        prompts_R: number of each one's prompt.
        prompt_lengths_R: tokens of it that count once; 0 for a row by itself.
    """
    own = lengths - prompt_lengths_R
    of_prompts = np.zeros(int(prompts_R.max()) + 1, dtype=np.int64)
    of_prompts[prompts_R] = prompt_lengths_R
    fits_in_one = own.sum() + of_prompts.sum() <= budget and lengths.sum() <= KEYS_TO_BUDGET * budget
    if fits_in_one and len(lengths) * int(lengths.max()) <= GRID_TO_BUDGET * budget:
        return [np.argsort(-lengths, kind="stable")]
    longest = np.zeros(int(prompts_R.max()) + 1, dtype=np.int64)
    np.maximum.at(longest, prompts_R, lengths)
    room, rows_in, widest, keys = (np.zeros(len(lengths), dtype=np.int64) for _ in range(4))
    parts: list[list[int]] = []
    at_hand: list[set[int]] = []
    for row in np.lexsort((-lengths, prompts_R, -longest[prompts_R])).tolist():
        length, number, shared = int(lengths[row]), int(prompts_R[row]), int(prompt_lengths_R[row])
        begun = slice(0, len(parts))
        needs = np.array([length - shared if number in prompts else length for prompts in at_hand], dtype=np.int64)
        grid = (rows_in[begun] + 1) * np.maximum(widest[begun], length)
        fits = (room[begun] >= needs) & (grid <= GRID_TO_BUDGET * budget)
        fits &= keys[begun] + length <= KEYS_TO_BUDGET * budget
        first = int(fits.argmax()) if fits.any() else len(parts)
        if first == len(parts):
            parts.append([])
            at_hand.append(set())
            room[first] = budget
        room[first] -= length - shared if number in at_hand[first] else length
        keys[first] += length
        rows_in[first], widest[first] = rows_in[first] + 1, max(int(widest[first]), length)
        parts[first].append(row)
        if shared:
            at_hand[first].add(number)
    return [_longest_first(np.array(part, dtype=np.int64), lengths) for part in parts]


def _longest_first(part: Ints, lengths: Ints) -> Ints:
    part = np.sort(part)
    return part[np.argsort(-lengths[part], kind="stable")]


def padded(lengths: Ints, budget: int) -> Sequence[Ints]:
    """Fill micro-batches with rows that are padded to the longest among them: rows of like length together.

    Args:
        lengths: [R] tokens of each row.
        budget: most tokens of a micro-batch, padding included; as in `packed` otherwise.
    """
    order = np.argsort(-lengths, kind="stable")
    parts, start = [], 0
    while start < len(order):
        size = max(budget // int(lengths[order[start]]), 1)
        parts.append(order[start : start + size])
        start += size
    return parts
