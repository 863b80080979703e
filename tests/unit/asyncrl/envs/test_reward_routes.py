"""Which scorers a data source goes to, by the configuration; combinations that would do nothing are refused."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from asyncrl.config.reward import RewardConfig
from asyncrl.envs.rewards.limits import Share
from asyncrl.envs.rewards.pool import weighted
from asyncrl.envs.rewards.result import Reward
from asyncrl.envs.rewards.routes import Route, route_of, routes_of, scorers_of

SERVER = {"url": "http://rm/score"}
JUDGE = {"name": "judge", "url": "http://judge/v1", "model": "m"}
OWN = {"name": "own", "file": "own.py"}


def config(**tree: Any) -> RewardConfig:
    return RewardConfig.model_validate_json(json.dumps(tree))


def asked(reward: RewardConfig, source: str) -> tuple[tuple[str, float], ...]:
    return route_of(routes_of(reward), source).scorers


def test_by_default_the_table_scores_everything_and_with_a_file_that_does() -> None:
    assert asked(config(), "gsm8k") == (("table", 1.0),)
    assert asked(config(file="my.py"), "gsm8k") == (("file", 1.0),)
    assert list(scorers_of(config(), Share())) == ["table"]


def test_servers_come_before_judges_before_functions_before_the_table() -> None:
    reward = config(
        servers=[{**SERVER, "data_sources": ["a"]}, {**SERVER, "name": "second", "data_sources": ["b", "a"]}],
        judges=[{**JUDGE, "data_sources": ["b", "c"]}],
        functions=[{**OWN, "data_sources": ["c", "d"]}],
    )
    found = {source: asked(reward, source)[0][0] for source in "abcde"}
    assert found == {"a": "server-1", "b": "second", "c": "judge", "d": "own", "e": "table"}
    assert set(scorers_of(reward, Share())) == {"server-1", "second", "judge", "own", "table"}


def test_a_scorer_of_a_combination_scores_nothing_alone_unless_it_is_told_to() -> None:
    combine = [{"scorers": [{"scorer": "judge", "weight": 0.5}, {"scorer": "table"}], "data_sources": ["a"]}]
    reward = config(judges=[JUDGE], combine=combine)
    assert asked(reward, "a") == (("judge", 0.5), ("table", 1.0))
    assert asked(reward, "b") == (("table", 1.0),)
    also = config(judges=[{**JUDGE, "data_sources": ["b"]}], combine=combine)
    assert asked(also, "b") == (("judge", 1.0),)
    only_sum = config(file="my.py", combine=[{"scorers": [{"scorer": "file"}, {"scorer": "table"}]}])
    assert asked(only_sum, "any") == (("file", 1.0), ("table", 1.0))


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"judges": [JUDGE, JUDGE]}, "two scorers named 'judge'"),
        ({"functions": [{**OWN, "name": "table"}]}, "two scorers named 'table'"),
        ({"combine": [{"scorers": [{"scorer": "rm"}]}]}, "the scorer 'rm', which is not there. There are: table"),
        ({"combine": [{"scorers": [{"scorer": "file"}]}]}, "the scorer 'file', which is not there"),
        ({"combine": [{"scorers": [{"scorer": "table"}, {"scorer": "table"}]}]}, "'table' twice"),
        ({"combine": [{"scorers": []}]}, "at least 1 item"),
        ({"judges": [JUDGE], "file": "my.py"}, r"judges\[0\] takes the answers of every .* rollout.reward.file would"),
        ({"judges": [{**JUDGE, "prompt": "hello"}]}, r"its prompt has no \{answer\}"),
        ({"judges": [{**JUDGE, "score_pattern": "(a)(b)"}]}, "has 2 groups, wanted one"),
        ({"judges": [{**JUDGE, "score_pattern": "("}]}, "is no regular expression"),
        ({"judges": [{**JUDGE, "score_pattern": None}]}, "needs score_pattern or score_key"),
        ({"judges": [{**JUDGE, "lowest": 1}]}, "must be above lowest"),
        ({"max_failure_share": 1.0}, "less than 1"),
    ],
)
def test_what_would_have_no_effect_or_no_meaning_is_refused_by_name(tree: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        config(**tree)


def test_a_sum_without_one_of_its_scores_is_no_sum() -> None:
    route = Route((("a", 1.0), ("b", 2.0)), is_sum=True)
    assert weighted(route, [Reward(1.0), Reward(0.25, None, {"x": 3.0}, "7")]) == Reward(
        1.5, None, {"a": 1.0, "b": 0.25, "b/x": 3.0}, "7"
    )
    assert weighted(route, [Reward(1.0), Reward(None, "timeout: late")]) == Reward(None, "b: timeout: late")
