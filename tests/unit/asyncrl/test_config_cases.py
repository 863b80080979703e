"""What configurations of other systems let pass silently is read right here, or refused by name (B170 to B177)."""

from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.load_config import load
from asyncrl.trainer.parallel import mini_batches


@pytest.fixture(autouse=True)
def no_redis_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASYNCRL_REDIS_URL", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


def refused(file: Path, text: str, *overrides: str) -> str:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, overrides)
    return str(caught.value)


@pytest.mark.parametrize(("written", "rate"), [("1e-6", 1e-6), ("1.0e6", 1e6), ("1e6", 1e6), ("+1E-06", 1e-6)])
def test_a_number_with_an_exponent_is_a_number_in_a_file_and_on_the_command_line(
    file: Path, written: str, rate: float
) -> None:
    """B170."""
    file.write_text(f"actor: {{lr: {written}}}\n")
    for config in (load(file).config, load(None, [f"actor.lr={written}"]).config):
        assert config.actor.lr == rate
        assert isinstance(config.actor.lr, float)


@pytest.mark.parametrize("word", ["off", "no", "on", "NO"])
def test_a_word_is_no_boolean_where_a_word_is_wanted(file: Path, word: str) -> None:
    """B171."""
    assert f'must be one of wait, drop, not "{word}"' in refused(file, f"staleness: {{policy: {word}}}")


def test_digits_stay_as_they_are_written_and_no_time_becomes_a_number(file: Path) -> None:
    """B171: 010 is neither 8 nor 10, and 12:30:45 is not 45045."""
    file.write_text("run: {name: 010}\n")
    assert load(file).config.run.name == "010"
    assert '"12:30:45"' in refused(file, "run: {name: 12:30:45}\n")
    assert 'not "010". Write a plain number, without quotes, units or leading zeros.' in refused(
        file, "staleness: {limit: 010}\n"
    )


def test_a_slip_is_refused_in_file_and_on_the_command_line_with_the_nearest_key(file: Path) -> None:
    """B172."""
    for message in (
        refused(file, "staleness: {limt: 2}\ntrainer: {stepz: 4}\n"),
        refused(file, "", "staleness.limt=2", "trainer.stepz=4"),
    ):
        assert message.startswith("2 problems")
        assert "staleness.limt" in message
        assert "did you mean staleness.limit" in message
        assert "trainer.stepz" in message
        assert "did you mean trainer.steps" in message


def test_a_key_in_the_wrong_section_is_answered_with_its_own(file: Path) -> None:
    """B173."""
    assert "did you mean actor.lr" in refused(file, "rollout: {lr: 0.1}\n")


def test_a_key_that_stands_twice_is_refused_with_both_lines(file: Path) -> None:
    """B174, at any depth and for whole sections."""
    assert "lines 2 and 3" in refused(file, "schedule:\n  groups_per_step: 4\n  groups_per_step: 8\n")
    assert "lines 1 and 2" in refused(file, "rollout: {n: 4}\nrollout: {slots: 8}\n")


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("weightsync: {transport: directory}", "needs weightsync.directory"),
        ("inference: {servers: 0}", "inference.urls is empty"),
        ("inference: {record_experts: true}", "inference.engine = local serves no models with experts"),
        ("weightsync: {transport: tcp, tcp: {bind: 0.0.0.0}}", "Set the key for both commands"),
    ],
)
def test_what_needs_another_key_is_refused_without_it(file: Path, text: str, needs: str) -> None:
    """B175."""
    assert needs in refused(file, text)


def test_no_limit_is_fixed_where_the_schedule_is_not() -> None:
    """B176: four steps to a version are no lag of four: lag counts versions, and a version has all of their groups."""
    config = load(None, ["schedule.steps_per_version=4", "trainer.steps=8", "schedule.groups_per_step=2"]).config
    assert (config.plan.limit, config.plan.steps_per_version, config.groups_per_version) == (2, 4, 8)


def test_sizes_that_do_not_divide_lose_nothing_and_impossible_ones_are_named(file: Path) -> None:
    """B177: a batch counts groups, so no group is cut; 10 groups in 4 parts are 3 + 2 + 3 + 2."""
    parts = mini_batches(range(10), 4)
    assert sorted(map(len, parts)) == [2, 2, 3, 3]
    assert sorted(ordinal for part in parts for ordinal in part) == list(range(10))
    message = refused(file, "schedule: {groups_per_step: 4}\nactor: {ppo_mini_batches: 10}\n")
    assert "actor.ppo_mini_batches = 10" in message
    assert "schedule.groups_per_step = 4" in message


def test_several_greedy_answers_to_one_held_out_prompt_are_refused(file: Path) -> None:
    assert "eval.n = 4" in refused(file, "eval: {n: 4, temperature: 0}\n")
    assert "-1 is off" in refused(file, "eval: {top_k: 0}\n")
    file.write_text("eval: {n: 1, temperature: 0}\n")
    assert load(file).config.eval.temperature == 0
