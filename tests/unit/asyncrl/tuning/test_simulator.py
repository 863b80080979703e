"""Simulated runs: worked out by hand where nothing is random, within the rules where everything is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.tuning.prediction import Prediction, warm_up_steps
from asyncrl.tuning.profile import Answers, Profile, Setting, Speeds, Workload
from asyncrl.tuning.simulator import simulate
from tests.unit.asyncrl.tuning.profiles import profile

HEAVY = {10: 0.6, 40: 0.3, 160: 0.09, 640: 0.01}


def play(found: Profile, *, steps: int = 12, **changes: object) -> Prediction:
    setting = found.setting.model_copy(update=changes)
    return simulate(found, setting, steps=warm_up_steps(setting) + steps)


def test_with_limit_0_everything_is_one_after_the_other() -> None:
    found = profile(environment_s={0.5: 1.0}, publish_s=0.2, stage_s=0.1, pause_s=0.3, notice_s=0.05, blocked_s=0.07)
    # 10 tokens of 0.1 s, the environment, the step, the publish that is waited for, and the version's way to a server.
    way_s = 0.1 + 0.3 + 0.05
    predicted = play(found)
    assert predicted.step_s == pytest.approx(1.0 + 0.5 + 1.0 + 0.07 + 0.2 + way_s)
    assert predicted.stall_share == pytest.approx((1.5 + way_s) / predicted.step_s)
    assert (predicted.lag_mean, predicted.stale_share) == (0.0, 0.0)
    assert predicted.tokens_per_s == pytest.approx(20 / predicted.step_s)
    assert predicted.server_wait_s == pytest.approx(way_s)


def test_a_window_of_two_versions_hides_generation_behind_training() -> None:
    found = profile(step_s=3.0, pause_s=0.3, publish_s=0.2)
    predicted = play(found, limit=1)
    assert predicted.step_s == pytest.approx(3.0), "an answer is there in 1.5 s"
    assert (predicted.stall_share, predicted.lag_mean) == (0.0, pytest.approx(1.0))
    assert play(found, limit=0).step_s == pytest.approx(3.0 + 0.2 + 0.3 + 1.0)


def test_slots_bound_what_is_generated() -> None:
    # Two groups of one a step, an answer takes a second: with one slot a step takes two.
    found = profile(step_s=0.5)
    assert play(found, limit=4, slots=1).step_s == pytest.approx(2.0)
    assert play(found, limit=4, slots=4).step_s == pytest.approx(0.5)


def test_a_server_with_more_requests_is_slower_and_a_second_one_takes_half() -> None:
    found = profile(group_size=4, token_s={1.0: 0.1, 8.0: 0.8}, step_s=0.01, setting=Setting(limit=0, slots=64))
    assert play(found).step_s == pytest.approx(8.0 + 0.01), "8 requests at once: each token takes 0.8 s"
    assert play(found, servers=2).step_s == pytest.approx(4.0 + 0.01)


def test_ranks_share_the_tokens_of_a_step_and_not_its_fixed_part() -> None:
    found = profile(step_s=0.5, trained_token_s=0.4)
    assert play(found, limit=4, slots=64).step_s == pytest.approx(0.5 + 20 * 0.4)
    assert play(found, limit=4, slots=64, ranks=4).step_s == pytest.approx(0.5 + 20 * 0.1)


def test_turns_go_to_the_server_and_the_environment_one_after_the_other() -> None:
    found = profile(turns=2.0, environment_s={0.5: 1.0})
    assert play(found).step_s == pytest.approx(1.0 + 2 * 0.5 + 1.0)


def test_checkpoints_are_part_of_the_steps() -> None:
    found = profile(checkpoint_s=2.0)
    every = found.model_copy(update={"workload": found.workload.model_copy(update={"checkpoint_every": 2})})
    assert play(every, limit=4).step_s == pytest.approx(play(found, limit=4).step_s + 1.0)
    assert play(every).step_s == pytest.approx(play(found).step_s + 0.5), "half of it beside the next answers"


def test_a_version_of_several_steps_has_as_many_groups_in_its_window() -> None:
    found = profile(step_s=0.2)
    one, three = play(found, limit=0), play(found, limit=0, steps_per_version=3)
    assert one.step_s == pytest.approx(1.2)
    assert three.step_s == pytest.approx((1.0 + 3 * 0.2) / 3), "its groups are sampled together"


def test_dropping_selects_on_length_and_waiting_does_not() -> None:
    found = profile(groups_per_step=8, group_size=4, lengths=HEAVY, in_group_share=0.5, step_s=2.0)
    waited, dropped = (play(found, limit=1, steps=40, policy=policy) for policy in ("wait", "drop"))
    assert dropped.stale_share > 0.05
    assert dropped.length_bias < -0.05
    assert abs(waited.length_bias) < 0.01
    assert waited.stall_share > dropped.stall_share, "what dropping costs in answers, waiting costs in time"


def test_the_same_seed_is_the_same_run() -> None:
    found = profile(groups_per_step=4, group_size=4, lengths=HEAVY, environment_s={0.1: 3.0, 4.0: 1.0})
    setting = Setting(limit=2, slots=16)
    assert simulate(found, setting, steps=30, seed=3) == simulate(found, setting, steps=30, seed=3)
    assert simulate(found, setting, steps=30, seed=3) != simulate(found, setting, steps=30, seed=4)


def test_steps_that_are_all_warm_up_are_refused() -> None:
    with pytest.raises(ValueError, match=r"6 steps are all warm-up: with limit 2 and 1 steps a version the first 6"):
        simulate(profile(), Setting(limit=2), steps=6)


SECONDS = st.floats(0, 3)
ANYTHING = st.builds(
    Profile,
    workload=st.builds(
        Workload,
        groups_per_step=st.integers(1, 5),
        group_size=st.integers(1, 4),
        on_stale=st.sampled_from(["resubmit", "discard"]),
        max_stale=st.integers(0, 3),
        order=st.sampled_from(["oldest", "ordinal"]),
        checkpoint_every=st.integers(1, 9),
    ),
    answers=st.builds(
        Answers,
        lengths=st.dictionaries(st.integers(1, 500), st.floats(0.1, 9), min_size=1, max_size=4),
        in_group_share=st.floats(0, 1),
        turns=st.floats(1, 3),
        environment_s=st.dictionaries(st.floats(0, 20), st.floats(0.1, 9), max_size=3),
    ),
    speeds=st.builds(
        Speeds,
        token_s=st.dictionaries(st.floats(1, 200), st.floats(0.001, 0.2), min_size=1, max_size=4),
        step_s=st.floats(0.01, 3),
        trained_token_s=st.floats(0, 0.01),
        blocked_s=SECONDS,
        publish_s=SECONDS,
        stage_s=SECONDS,
        pause_s=SECONDS,
        notice_s=SECONDS,
        checkpoint_s=SECONDS,
    ),
)
SETTINGS = st.builds(
    Setting,
    limit=st.integers(0, 4),
    policy=st.sampled_from(["wait", "drop"]),
    steps_per_version=st.integers(1, 3),
    servers=st.integers(1, 3),
    ranks=st.integers(1, 3),
    slots=st.integers(1, 40),
)


@settings(max_examples=40, deadline=None)
@given(ANYTHING, SETTINGS, st.integers(0, 5))
def test_no_group_is_trained_past_the_limit_and_no_run_stands_still(
    found: Profile, setting: Setting, seed: int
) -> None:
    predicted = simulate(found, setting, steps=warm_up_steps(setting) + 4, seed=seed)
    assert predicted.lag_max <= setting.limit
    assert 0 <= predicted.lag_mean <= setting.limit
    for share in (predicted.stall_share, predicted.stale_share, predicted.refused_share, predicted.busy_share):
        assert 0 <= share <= 1 + 1e-9
    assert predicted.step_s > 0
    assert predicted.tokens_per_s > 0
    busy_s = predicted.step_s * (1 - predicted.stall_share)
    assert busy_s >= found.speeds.step_s - 1e-9, "a step takes its own seconds, whatever is waited for"
