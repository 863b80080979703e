"""Whether lending pays, from measurements alone: against a simulated wait, and by its rules."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.trainer.lending import (
    LEND_AGAIN,
    LEND_FROM,
    PROBE_AFTER,
    Average,
    LendingPolicy,
    Rate,
    lent_wait_s,
)

rates = st.floats(0.01, 100.0)
seconds = st.floats(0.01, 100.0)


def measured(alone: float, together: float, wake_s: float, sleep_s: float) -> LendingPolicy:
    """A policy that has seen these."""
    policy = LendingPolicy()
    policy.alone.note(alone * 100, 100.0)
    policy.together.note(together * 100, 100.0)
    policy.wake.note(wake_s)
    policy.sleep.note(sleep_s)
    return policy


def judged(policy: LendingPolicy, num_missing: int):
    return policy.judge(num_missing, num_lent=1, num_others=1)


def simulated_s(num_missing: int, alone: float, together: float, wake_s: float, sleep_s: float) -> float:
    """The same seconds, by walking through time in small steps."""
    done, at_s, tick_s = 0.0, 0.0, min(wake_s, 0.01 / together)
    while done < num_missing:
        done += tick_s * (alone if at_s < wake_s else together)
        at_s += tick_s
    return at_s + sleep_s


@pytest.mark.parametrize(("num_missing", "wake_s"), [(8, 0.5), (1, 5.0), (3, 0.0001), (20, 2.0)])
def test_the_formula_is_what_a_walk_through_time_takes(num_missing: int, wake_s: float) -> None:
    expected = simulated_s(num_missing, 0.9, 2.1, wake_s, 0.3)
    assert lent_wait_s(num_missing, 0.9, 2.1, wake_s, 0.3) == pytest.approx(expected, rel=0.02)


@given(alone=rates, together=rates, wake_s=seconds, sleep_s=seconds, num_missing=st.integers(-3, 500))
def test_a_loan_is_only_given_for_a_wait_of_several_switches_that_it_makes_shorter(
    alone: float, together: float, wake_s: float, sleep_s: float, num_missing: int
) -> None:
    verdict = judged(measured(alone, together, wake_s, sleep_s), num_missing)
    wait_s = max(num_missing, 0) / alone
    lent_s = lent_wait_s(num_missing, alone, together, wake_s, sleep_s) if num_missing > 0 else 0.0
    if verdict.lends:
        assert num_missing > 0
        assert wait_s >= LEND_FROM * (wake_s + sleep_s) * 0.999
        assert lent_s < wait_s
        assert verdict.saved_s == pytest.approx(wait_s - lent_s, rel=1e-6, abs=1e-6)
    elif verdict.reason == "no_gain":
        assert lent_s >= wait_s * 0.999
    elif verdict.reason == "short_wait":
        assert wait_s <= LEND_FROM * (wake_s + sleep_s) * 1.001
    else:
        assert (verdict.reason, num_missing <= 0) == ("ready", True)


@given(alone=rates, together=rates, wake_s=seconds, sleep_s=seconds, num_missing=st.integers(1, 100))
def test_more_that_is_missing_never_turns_a_loan_down(
    alone: float, together: float, wake_s: float, sleep_s: float, num_missing: int
) -> None:
    policy = measured(alone, together, wake_s, sleep_s)
    if judged(policy, num_missing).lends:
        assert judged(policy, num_missing + 1).lends


def test_what_is_not_measured_yet_is_found_out_by_lending() -> None:
    assert judged(LendingPolicy(), 1).reason == "unmeasured"
    policy = LendingPolicy()
    policy.alone.note(1, 10.0)
    policy.wake.note(0.1)
    assert judged(policy, 1).lends
    assert not judged(LendingPolicy(), 0).lends


def test_nobody_is_lent_to_who_is_not_there_and_where_nobody_else_generates_there_is_no_choice() -> None:
    dear = measured(alone=5.0, together=5.0, wake_s=1e6, sleep_s=1e6)
    assert dear.judge(8, num_lent=0, num_others=2).reason == "no_server"
    assert dear.judge(8, num_lent=2, num_others=0).lends
    assert dear.judge(8, num_lent=0, num_others=0).lends, "servers that are about to start need the devices"
    assert not dear.judge(0, num_lent=2, num_others=0).lends, "a batch is ready: they would be taken back at once"


def test_a_wait_that_lasts_longer_than_it_should_is_lent_in_the_end() -> None:
    policy = measured(alone=4.0, together=8.0, wake_s=1.0, sleep_s=1.0)
    assert policy.judge(8, num_lent=1, num_others=1).reason == "short_wait"
    waited_s = next(s for s in range(1, 2000) if policy.judge(8, num_lent=1, num_others=1, num=0.0, seconds=s).lends)
    assert waited_s < 400


def test_a_wait_near_the_bound_does_not_change_sides_at_every_step() -> None:
    policy = measured(alone=1.0, together=3.0, wake_s=1.0, sleep_s=1.0)
    between = math.ceil((LEND_FROM + LEND_AGAIN) / 2 * 2.0)
    verdict = judged(policy, between)
    assert not verdict.lends
    for _ in range(2):
        policy.waited(judged(policy, 100))
        assert judged(policy, between).lends


def test_one_slow_switch_is_not_held_against_lending_for_ever() -> None:
    policy = measured(alone=1.0, together=2.0, wake_s=600.0, sleep_s=1.0)
    num_refused = 0
    while not (verdict := judged(policy, 30)).lends:
        policy.waited(verdict)
        num_refused += 1
    assert 5 < num_refused < 100


def test_a_gain_that_was_not_there_is_looked_for_again_now_and_then() -> None:
    policy = measured(alone=1.0, together=0.5, wake_s=0.1, sleep_s=0.1)
    reasons = []
    for _ in range(PROBE_AFTER + 2):
        verdict = judged(policy, 8)
        reasons.append(verdict.reason)
        policy.waited(verdict)
    assert reasons == ["no_gain"] * PROBE_AFTER + ["unmeasured", "no_gain"]


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), max_size=20))
def test_a_rate_lies_between_the_slowest_and_the_fastest_stretch(stretches: list[tuple[float, float]]) -> None:
    rate = Rate()
    for num, length_s in stretches:
        rate.note(num, length_s)
    found = [num / length_s for num, length_s in stretches if length_s > 0]
    if not found:
        assert rate.per_s() is None
    else:
        assert rate.per_s() == pytest.approx(min(max(rate.per_s(), min(found)), max(found)))


def test_an_average_begins_with_the_first_measurement_and_follows_the_newest() -> None:
    average = Average()
    average.forget()
    assert average.value is None
    average.note(10.0)
    assert average.value == 10.0
    for _ in range(20):
        average.note(1.0)
    assert average.value == pytest.approx(1.0, abs=0.01)
