"""Prompt lengths: which prompts are too long, and how one is cut."""

from collections.abc import Sequence

from asyncrl.errors import DataError

TRUNCATIONS = ("error", "left", "right", "middle")


def truncate(token_ids: Sequence[int], limit: int, how: str, *, row: int) -> list[int]:
    """A prompt cut to at most `limit` tokens.

    Args:
        token_ids: [T] ids of the rendered prompt.
        limit: longest prompt in tokens, >= 1.
        how: the side that loses tokens: `left` keeps the last ones, `right` the first ones, `middle` half of each;
            `error` refuses.
        row: the row's index, for the message.
    Raises:
        DataError: the prompt is longer and `how` is `error`.
    """
    ids = list(token_ids)
    if len(ids) <= limit:
        return ids
    if how == "left":
        return ids[-limit:]
    if how == "right":
        return ids[:limit]
    if how == "middle":
        first = limit // 2
        return ids[:first] + ids[len(ids) - (limit - first) :]
    raise DataError(
        f"row {row}: its prompt has {len(ids)} tokens, more than data.max_prompt_tokens = {limit}. Raise the limit, or "
        "leave such rows out (data.filter_overlong_prompts=true), or cut them (data.truncation=left, right or middle)."
    )
