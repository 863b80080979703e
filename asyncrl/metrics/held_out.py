"""Metrics of held-out answers, under verl's names: means, spreads, and what the best of k answers is worth, or the one
that most of them agree on.

A prompt counts once, however many of its answers have a reward; a source's number is the mean over its prompts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import comb
from statistics import fmean, pstdev

from buffer import Trajectory

PRED = "pred"
"""Key of a trajectory's extra_info: what the answer says, see rewards.result.Reward.answer; verl's word."""

Answered = tuple[str, Sequence[Trajectory]]
"""A prompt's data source, and its answers."""


def measure(prompts: Sequence[Answered], *, group_size: int, pass_reward: float) -> dict[str, float]:
    """Metrics of the answers to held-out prompts.

    Args:
        prompts: those that have answers. Answers without a reward count in lengths and in `without_reward` alone.
        group_size: answers that each prompt was to get, the N of mean@N.
        pass_reward: smallest reward of an answer that passes.
    Returns:
        By source: val-core/<source>/reward/mean@N, pass@k, best@N/mean, maj@N/mean; val-aux/<source>/ for the others.
        Numbers that nothing was measured for are absent: pass@k and best@k are of prompts with at least k rewards,
        maj@N of prompts with N of which it is known what they say.
    """
    by_source: dict[str, list[Sequence[Trajectory]]] = defaultdict(list)
    for source, answers in prompts:
        by_source[source].append(answers)
    values: dict[str, float] = {}
    for source in sorted(by_source):
        values |= _rewards(source, by_source[source], group_size, pass_reward)
        values |= _parts(source, by_source[source], group_size)
        values |= _answers(source, [answer for answers in by_source[source] for answer in answers])
    return values


def held_out_score(values: dict[str, float]) -> float | None:
    """One number of an evaluation: the mean over sources of mean@N, None if nothing was scored."""
    means = [value for name, value in values.items() if name.startswith("val-core/") and "/reward/mean@" in name]
    return fmean(means) if means else None


def best_of(rewards: Sequence[float], k: int) -> float:
    """Expected best of k answers, drawn without replacement from those that there are.

    Of rewards that are 0 or 1 this is the unbiased estimator of pass@k, 1 - C(n - c, k) / C(n, k) with c passes among
    n answers.

    Args:
        rewards: n of them, n >= k.
        k: answers to draw, at least 1.
    Source: Chen et al. 2021, arXiv:2107.03374, equation 1.
    """
    ascending, draws = sorted(rewards), comb(len(rewards), k)
    return sum(reward * comb(rank, k - 1) / draws for rank, reward in enumerate(ascending))


def majority(answers: Sequence[Trajectory]) -> float | None:
    """The reward of what most answers say, of equally many the one that was said first; those that say nothing have no
    vote. None: of one of them it is not known what it says, or it has no reward.

    Source: Wang et al. 2023, arXiv:2203.11171, section 2.
    """
    said = [answer.extra_info.get(PRED) for answer in answers]
    if any(answer.reward is None for answer in answers) or not all(isinstance(word, str) for word in said):
        return None
    votes = Counter(word for word in said if word)
    chosen = said.index(votes.most_common(1)[0][0]) if votes else 0
    return answers[chosen].reward


def _rewards(source: str, prompts: Sequence[Sequence[Trajectory]], size: int, pass_reward: float) -> dict[str, float]:
    known = [[t.reward for t in answers if t.reward is not None] for answers in prompts]
    known = [rewards for rewards in known if rewards]
    core, aux = f"val-core/{source}/reward", f"val-aux/{source}/reward"
    values = {}
    if known:
        values[f"{core}/mean@{size}"] = values[f"val/test_score/{source}"] = fmean(map(fmean, known))
        if size > 1:
            values[f"{aux}/std@{size}"] = fmean(map(pstdev, known))
    agreed = [majority(answers) for answers in prompts if len(answers) == size > 1]
    if worth := [value for value in agreed if value is not None]:
        values[f"{core}/maj@{size}/mean"] = fmean(worth)
    for k in _powers_of_two_and(size):
        enough = [rewards for rewards in known if len(rewards) >= k]
        if not enough:
            continue
        passed = ([float(reward >= pass_reward) for reward in rewards] for rewards in enough)
        values[f"{core}/pass@{k}"] = fmean(best_of(passes, k) for passes in passed)
        if k > 1:
            prefix = core if k == size else aux
            values[f"{prefix}/best@{k}/mean"] = fmean(best_of(rewards, k) for rewards in enough)
    return values


def _parts(source: str, prompts: Iterable[Sequence[Trajectory]], size: int) -> dict[str, float]:
    means: dict[str, list[float]] = defaultdict(list)
    for answers in prompts:
        for part in {name for answer in answers for name in answer.reward_parts}:
            means[part].append(fmean(t.reward_parts[part] for t in answers if part in t.reward_parts))
    return {f"val-aux/{source}/{part}/mean@{size}": fmean(means[part]) for part in sorted(means)}


def _answers(source: str, answers: Sequence[Trajectory]) -> dict[str, float]:
    if not answers:
        return {}
    prefix, lengths = f"val-aux/{source}", [answer.num_sampled for answer in answers]
    return {
        f"{prefix}/response_length/mean": fmean(lengths),
        f"{prefix}/response_length/max": float(max(lengths)),
        f"{prefix}/response_length/clip_ratio": fmean(answer.finish_reason == "length" for answer in answers),
        f"{prefix}/num_turns/mean": fmean(answer.num_turns for answer in answers),
        f"{prefix}/without_reward": float(sum(answer.reward is None for answer in answers)),
    }


def _powers_of_two_and(size: int) -> Iterator[int]:
    k = 1
    while k < size:
        yield k
        k *= 2
    yield size
