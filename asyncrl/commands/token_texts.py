"""The token ledger in plain words: what became of every sampled token, and what was wasted, by reason."""

from collections.abc import Iterator, Mapping
from typing import Any

from buffer import TokenLedger

MEANING: Mapping[str, str] = {
    "trained": "in the loss of a version that survives",
    "masked": "trained with, but kept out of the loss",
    "evaluated": "of held-out prompts",
    "rolled_back": "trained on a branch that was given up for an older checkpoint",
    "filtered": "their group had no learning signal",
    "stale/resubmitted": "their group was past the limit on lag; the prompt is played again",
    "stale/discarded": "their group was past the limit on lag; the prompt is not played again",
    "stale/partials": "parked unfinished, and past the limit on lag before anybody went on from them",
    "failed": "their group was lost or failed",
    "failed/worker_lost": "their worker fell silent; at least this many",
    "failed/abandoned": "given back unfinished, as at a stop",
    "failed/fenced": "handed in after the claim was lost",
    "failed/too_large": "their group was larger than buffer.max_group_bytes",
    "failed/corrupt_payload": "their payload was missing or damaged",
    "failed/trainer_poison": "their batch killed its trainer again and again",
}
"""Fate, or what comes before its slash -> what it means."""


def meaning(fate: str) -> str:
    """A fate in words."""
    return MEANING.get(fate) or MEANING.get(fate.partition("/")[0], "")


def table(tokens: TokenLedger) -> Iterator[tuple[str, ...]]:
    """fate, data source, trajectories, tokens, share of all that have ended, meaning; the largest first."""
    ended = sum(spent.tokens for spent in tokens.fates.values())
    for (fate, source), spent in sorted(tokens.fates.items(), key=lambda item: (-item[1].tokens, item[0])):
        share = f"{spent.tokens / ended:.1%}" if ended else ""
        yield fate, source or "-", f"{spent.trajectories:,}", f"{spent.tokens:,}", share, meaning(fate)


HEAD = ("fate", "data source", "answers", "tokens", "share", "meaning")


def one_line(tokens: TokenLedger) -> str:
    """The short form."""
    ended = sum(spent.tokens for spent in tokens.fates.values())
    if not tokens.sampled:
        return "none sampled yet"
    by_fate: dict[str, int] = {}
    for (fate, _), spent in tokens.fates.items():
        by_fate[fate] = by_fate.get(fate, 0) + spent.tokens
    shares = ", ".join(f"{fate} {count / ended:.1%}" for fate, count in by_fate.items() if ended and count)
    return f"{tokens.sampled:,} sampled, {tokens.held:,} held; ended: {shares or 'none yet'}"


def verdict(tokens: TokenLedger) -> str:
    """What was wasted, in a sentence."""
    wasted = tokens.wasted_by_reason()
    if not any(spent.tokens for spent in tokens.fates.values()):
        return "No sampled token has ended yet."
    if not wasted:
        return "Every sampled token that has ended was trained on or evaluated: none was wasted."
    most, share = max(wasted.items(), key=lambda item: item[1])
    return (
        f"{tokens.wasted_share:.1%} of the sampled tokens that have ended were wasted, {share:.1%} as {most}: "
        f"{meaning(most)}."
    )


def to_json(tokens: TokenLedger) -> dict[str, Any]:  # plain data for json.dump
    """The ledger with its sentence."""
    return {**tokens.to_json(), "verdict": verdict(tokens)}
