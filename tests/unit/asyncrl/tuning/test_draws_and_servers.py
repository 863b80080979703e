"""What episodes take, and how requests share a server: against a slow server that moves a millisecond at a time."""

from statistics import fmean, pvariance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.tuning.draws import Draws
from asyncrl.tuning.profile import Answers
from asyncrl.tuning.servers import Server, TokenTimes

LENGTHS = {10: 5.0, 20: 3.0, 80: 2.0}


def draws(*, share: float = 1.0, turns: float = 1.0, seed: int = 0, size: int = 8) -> Draws:
    answers = Answers(lengths=LENGTHS, in_group_share=share, turns=turns, environment_s={0.5: 1.0, 2.5: 1.0})
    return Draws(answers, size, seed)


def test_a_prompt_is_drawn_the_same_again_and_another_seed_draws_another() -> None:
    assert draws().group(7) == draws().group(7)
    assert draws().group(7) != draws().group(8)
    assert draws().group(7) != draws(seed=1).group(7)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_lengths_are_as_often_as_they_were_whatever_of_them_is_the_groups(share: float) -> None:
    lengths = [episode.tokens for ordinal in range(300) for episode in draws(share=share).group(ordinal)]
    assert fmean(lengths) == pytest.approx(27.0, rel=0.1)
    assert lengths.count(80.0) / len(lengths) == pytest.approx(0.2, abs=0.06)


def test_answers_to_one_prompt_are_alike_as_far_as_they_were() -> None:
    within = {
        share: fmean(
            pvariance([episode.tokens for episode in draws(share=share).group(ordinal)]) for ordinal in range(150)
        )
        for share in (0.0, 0.5, 1.0)
    }
    assert within[0.0] == 0.0
    assert within[0.0] < within[0.5] < within[1.0]


def test_turns_share_an_answer_and_each_has_its_environment() -> None:
    episodes = [episode for ordinal in range(100) for episode in draws(turns=2.25).group(ordinal)]
    assert {len(episode.turns) for episode in episodes} == {2, 3}
    assert fmean(len(episode.turns) for episode in episodes) == pytest.approx(2.25, abs=0.06)
    assert {seconds for episode in episodes for _, seconds in episode.turns} == {0.5, 2.5}
    assert all(episode.tokens in (10, 20, 80) for episode in episodes if len(episode.turns) == 2)


def test_seconds_of_a_token_between_below_and_above_what_was_measured() -> None:
    times = TokenTimes({4.0: 0.02, 8.0: 0.03, 16.0: 0.05})
    assert (times.at(4), times.at(6), times.at(16)) == pytest.approx((0.02, 0.025, 0.05))
    assert times.at(32) == pytest.approx(0.1), "they queue"
    assert times.at(1) == pytest.approx(0.02 - 3 * 0.0025, abs=2e-4), "along the line through all"
    assert TokenTimes({4.0: 0.02}).at(1) == 0.02
    assert TokenTimes({8.0: 0.04, 4.0: 0.05}).at(1) == 0.05, "no faster because there are more"


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 30)), min_size=1, max_size=8),
    st.tuples(st.integers(0, 300), st.integers(0, 200)),
)
def test_requests_end_when_a_slow_server_ends_them(requests: list[tuple[int, int]], pause: tuple[int, int]) -> None:
    """Requests: (milliseconds of arrival, tokens); pause: from when, for how long."""
    times = TokenTimes({1.0: 0.01, 8.0: 0.03})
    from_s, until_s = pause[0] / 1000, sum(pause) / 1000
    ends = _ends(Server(times), requests, from_s, until_s)
    slow = _slow_ends(times, requests, from_s, until_s)
    assert ends == pytest.approx(slow, abs=0.012), "within a few of its milliseconds"


def _ends(server: Server, requests: list[tuple[int, int]], from_s: float, until_s: float) -> list[float]:
    arrivals = sorted((at / 1000, i) for i, (at, _) in enumerate(requests))
    changes = [(from_s, "still"), (until_s, "on")]
    ends = [0.0] * len(requests)
    now_s = 0.0
    while arrivals or changes or server.at_once:
        end_s = server.next_end_s(now_s)
        coming = min(
            arrivals[0][0] if arrivals else float("inf"),
            changes[0][0] if changes else float("inf"),
        )
        if end_s is not None and end_s <= coming:
            now_s = end_s
            ends[server.end_of_next(now_s)] = now_s  # type: ignore[index]
        elif arrivals and arrivals[0][0] == coming:
            now_s, i = arrivals.pop(0)
            server.take(now_s, requests[i][1], i)
        elif changes[0][1] == "still":
            now_s, _ = changes.pop(0)
            server.stand_still(now_s)
        else:
            now_s, _ = changes.pop(0)
            server.go_on(now_s, 1)
    return ends


def _slow_ends(times: TokenTimes, requests: list[tuple[int, int]], from_s: float, until_s: float) -> list[float]:
    left = {i: float(tokens) for i, (_, tokens) in enumerate(requests)}
    ends, tick, now_ms = [0.0] * len(requests), 0.001, 0
    while left:
        now_s = now_ms * tick
        here = [i for i in left if requests[i][0] <= now_ms]
        if here and not from_s <= now_s < until_s:
            for i in here:
                left[i] -= tick / times.at(len(here))
                if left[i] <= 1e-9:
                    ends[i] = now_s + tick
        left = {i: tokens for i, tokens in left.items() if tokens > 1e-9}
        now_ms += 1
    return ends
