"""Teachers and reward servers in the configuration: combinations that would silently do nothing are refused."""

from pathlib import Path

import pytest

from asyncrl.config import Config, RolloutConfig, TeacherConfig
from asyncrl.errors import ConfigError
from asyncrl.load_config.loader import load, to_yaml

FILE = """
rollout:
  reward:
    servers: [{url: "http://judge:80/score", data_sources: [openai/essays]}]
teachers:
  - {name: big, urls: ["http://one:1", "http://two:2"], data_sources: [maths], top_k: 4}
  - {name: small, path: models/small}
"""


def loaded(tmp_path: Path, text: str) -> Config:
    (tmp_path / "run.yaml").write_text(text)
    return load(tmp_path / "run.yaml").config


def test_teachers_and_reward_servers_are_lists_and_survive_being_written_as_yaml(tmp_path: Path) -> None:
    config = loaded(tmp_path, FILE)
    assert [teacher.name for teacher in config.teachers] == ["big", "small"]
    assert config.teachers[0].top_k == 4
    assert config.rollout.reward.servers[0].data_sources == ("openai/essays",)
    again = loaded(tmp_path, to_yaml(config))
    assert (again.teachers, again.rollout.reward) == (config.teachers, config.rollout.reward)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("teachers: [{name: a}]", "teacher 'a' needs either path .* or urls"),
        ('teachers: [{name: a, path: x, urls: ["http://b"]}]', "and not both"),
        ("teachers: [{name: a, path: x}, {name: a, path: y}]", "two entries named 'a'"),
        ("teachers: [{name: a, path: x}]\nrollout: {temperature: 0.7}", "rollout.temperature = 0.7 with teachers"),
        ("teachers: [{name: a, path: x, tok_k: 1}]", r"teachers\[0\].tok_k"),
        ("teachers: [{name: a/b, path: x}]", r"teachers\[0\].name"),
        ("rollout: {reward: {servers: [{url: ftp://x}]}}", r"rollout.reward.servers\[0\].url"),
        (
            'rollout: {reward: {file: my.py, servers: [{url: "http://x"}]}}',
            r"servers\[0\] takes the answers of every data source, so rollout.reward.file would never",
        ),
        (
            'rollout: {reward: {servers: [{url: "http://x"}, {url: "http://y"}]}}',
            r"so rollout.reward.servers\[1\] would never be called",
        ),
    ],
)
def test_what_would_have_no_effect_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        loaded(tmp_path, text)


def test_sections_of_a_list_are_the_same_when_they_are_made_in_python() -> None:
    teacher = TeacherConfig(name="a", urls=("http://b",))
    assert Config(teachers=(teacher,), rollout=RolloutConfig()).teachers == (teacher,)
