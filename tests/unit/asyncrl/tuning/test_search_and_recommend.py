"""Which settings are tried, and which of them is recommended with which words."""

from dataclasses import replace

import pytest

from asyncrl.errors import ConfigError
from asyncrl.tuning.prediction import Prediction
from asyncrl.tuning.profile import Setting
from asyncrl.tuning.recommend import recommend
from asyncrl.tuning.search import Row, search, settings, splits_of
from tests.unit.asyncrl.tuning.profiles import profile

PREDICTED = Prediction(
    tokens_per_s=1000.0,
    step_s=1.0,
    stall_share=0.05,
    lag_mean=1.0,
    lag_max=1,
    stale_share=0.0,
    length_bias=0.0,
    refused_share=0.2,
    busy_share=0.5,
    server_wait_s=0.1,
)


def row(limit: int = 1, policy: str = "wait", steps: int = 1, **numbers: float) -> Row:
    setting = Setting(limit=limit, policy=policy, steps_per_version=steps)
    return Row(setting, replace(PREDICTED, **{"lag_mean": float(limit), **numbers}))


def test_every_combination_is_tried_once_and_slots_grow_with_servers() -> None:
    tried = settings(
        Setting(servers=2, slots=32),
        limits=(0, 2),
        policies=("wait", "drop"),
        steps_per_version=(1, 2),
        splits=[(3, 1)],
    )
    combinations = [(one.limit, one.policy, one.steps_per_version) for one in tried]
    assert len(set(combinations)) == len(combinations) == 6
    assert (0, "drop", 1) not in combinations, "with limit 0 both policies are the same"
    assert {(one.servers, one.ranks, one.slots) for one in tried} == {(3, 1, 48)}


@pytest.mark.parametrize(
    ("devices", "each", "found"),
    [
        (2, 1, [(1, 1)]),
        (4, 1, [(1, 3), (2, 2), (3, 1)]),
        (8, 2, [(1, 6), (2, 4), (3, 2)]),
        (5, 4, [(1, 1)]),
    ],
)
def test_devices_are_shared_out_in_every_way_that_leaves_both_sides_some(
    devices: int, each: int, found: list[tuple[int, int]]
) -> None:
    assert splits_of(devices, each) == found


def test_many_devices_are_looked_at_in_a_few_ways_from_end_to_end() -> None:
    found = splits_of(64, 1)
    assert len(found) == 6
    assert (found[0], found[-1]) == ((1, 63), (63, 1))


def test_a_rank_that_is_split_further_costs_all_its_devices() -> None:
    assert splits_of(8, 1, 2) == [(1, 3), (2, 3), (3, 2), (4, 2), (5, 1), (6, 1)]
    assert splits_of(8, 2, 4) == [(1, 1), (2, 1)]


def test_too_few_devices_are_refused() -> None:
    with pytest.raises(ConfigError, match="4 devices are too few for one server of 4 and one rank of 1"):
        splits_of(4, 4)
    with pytest.raises(ConfigError, match=r"one server of 1 and one rank of 2 that trains\. Give at least 3"):
        splits_of(2, 1, 2)


def test_the_search_simulates_each_setting() -> None:
    tried = settings(Setting(slots=64), limits=(0, 1), policies=("wait",), steps_per_version=(1,), splits=[(1, 1)])
    seen: list[Row] = []
    rows = search(profile(), tried, steps=4, progress=seen.append)
    assert seen == rows
    assert [found.setting for found in rows] == tried
    assert rows[0].prediction.step_s == pytest.approx(2.0)
    assert rows[1].prediction.step_s == pytest.approx(1.0)


def test_of_rows_that_are_nearly_as_fast_the_freshest_is_taken() -> None:
    rows = [row(0, tokens_per_s=700.0), row(1, tokens_per_s=970.0), row(4, tokens_per_s=1000.0)]
    choice = recommend(rows)
    assert choice.row is rows[1]
    assert "970 tokens/s at a mean lag of 1.0" in choice.why
    assert "the fastest row, limit 4 with wait and 1 step a version, is 3% faster at a mean lag of 4.0" in choice.why
    assert recommend([rows[0], rows[2]]).row is rows[2], "a third slower is not nearly as fast"


def test_wait_is_before_drop_and_a_version_of_one_step_before_one_of_several() -> None:
    waits, drops = row(2, tokens_per_s=930.0), row(1, "drop", tokens_per_s=1000.0)
    assert recommend([drops, waits]).row is waits
    slow = row(1, tokens_per_s=800.0)
    assert recommend([drops, slow]).row is drops, "a fifth slower is no match"
    several = row(1, steps=4, tokens_per_s=1000.0)
    assert recommend([several, row(2, tokens_per_s=1000.0)]).row.setting.limit == 2, "four steps a version are older"


def test_rows_that_select_on_length_or_waste_groups_are_left_out() -> None:
    fair = row(1, tokens_per_s=500.0)
    biased, wasteful = (row(1, "drop", length_bias=-0.2), row(2, "drop", stale_share=0.3))
    choice = recommend([biased, wasteful, fair])
    assert choice.row is fair
    assert "2 rows are left out, where dropping selects on length or wastes groups" in choice.why
    assert "the best of a bad choice" in recommend([biased]).why
    with pytest.raises(ValueError, match="no setting to choose from"):
        recommend([])


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"stall_share": 0.02}, "the trainer is the limit (it waits 2% of the time)"),
        ({"stall_share": 0.5, "refused_share": 0.9}, "the window is the limit (the trainer waits 50% of the time"),
        ({"stall_share": 0.5, "refused_share": 0.1}, "generation is the limit (the trainer waits 50% of the time)"),
    ],
)
def test_the_sentence_says_who_waits_for_whom(numbers: dict[str, float], words: str) -> None:
    assert words in recommend([row(**numbers)]).why
