"""A configuration is read without surprises, and refused with a message that says what to write instead."""

from pathlib import Path

import pytest

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.load_config import FOREIGN_KEYS, SECRET_VARIABLES, LoadedConfig, describe, load, to_yaml
from asyncrl.load_config.foreign_keys import answer
from asyncrl.load_config.keys import known_keys
from asyncrl.load_config.secrets import is_secret

SHIPPED = sorted((Path(__file__).resolve().parents[3] / "configs").glob("*.yaml"))


@pytest.fixture(autouse=True)
def no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in SECRET_VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


def loaded(file: Path, text: str, *overrides: str) -> LoadedConfig:
    file.write_text(text)
    return load(file, overrides)


def refused(file: Path, text: str, *overrides: str) -> str:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, overrides)
    return str(caught.value)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_configuration_loads(path: Path) -> None:
    assert load(path).config.run.name


def test_no_file_gives_the_defaults() -> None:
    assert load(None).config == Config()


def test_an_empty_file_gives_the_defaults(file: Path) -> None:
    assert loaded(file, "# nothing yet\n").config == Config()


def test_an_override_wins_over_the_file_and_a_later_one_over_an_earlier(file: Path) -> None:
    config = loaded(file, "rollout: {n: 4, slots: 7}", "rollout.n=8", "rollout.n=16").config
    assert (config.rollout.n, config.rollout.slots) == (16, 7)


def test_an_override_of_a_section_keeps_the_keys_it_does_not_name(file: Path) -> None:
    config = loaded(file, "rollout: {n: 4, slots: 7}", "rollout={n: 8}").config
    assert (config.rollout.n, config.rollout.slots) == (8, 7)


def test_lists_paths_nulls_and_sections_can_be_overridden(file: Path) -> None:
    config = loaded(
        file, "starter: {seed: 3}", "data.train_files=[a.parquet, b.jsonl]", "run.dir=out", "starter=null"
    ).config
    assert config.data.train_files == (Path("a.parquet"), Path("b.jsonl"))
    assert config.run.dir == Path("out")
    assert config.starter is None


@pytest.mark.parametrize("written", ["1e-6", "1.0e-6", "0.000001", "1E-6"])
def test_an_exponent_without_a_dot_is_a_number(file: Path, written: str) -> None:
    assert loaded(file, f"actor: {{lr: {written}}}").config.actor.lr == 1e-6
    assert load(None, [f"actor.lr={written}"]).config.actor.lr == 1e-6


def test_a_name_with_a_leading_zero_stays_as_it_was_written(file: Path) -> None:
    assert loaded(file, "run: {name: 010}").config.run.name == "010"


def test_words_that_yaml_once_took_for_booleans_are_words(file: Path) -> None:
    assert "staleness.policy (" in (text := refused(file, "staleness: {policy: off}"))
    assert 'must be one of wait, drop, not "off"' in text


def test_yes_for_a_switch_is_answered_with_true(file: Path) -> None:
    text = refused(file, "data: {shuffle: yes}")
    assert 'must be true or false, not "yes". Write true.' in text


@pytest.mark.parametrize("written", ["true", "'2'", "-1", ".nan", "1.5", ".inf", "null 2"])
def test_a_limit_that_is_no_whole_number_is_refused_by_name(file: Path, written: str) -> None:
    assert "staleness.limit (" in refused(file, f"staleness: {{limit: {written}}}")


def test_a_wrong_value_is_answered_with_key_place_value_and_what_is_allowed(file: Path) -> None:
    text = refused(file, "run: {seed: 1}\nrollout:\n  n: 0\n")
    assert text == f"rollout.n ({file} line 3): must be a whole number >= 1, not 0"


def test_one_value_where_a_list_belongs_is_answered_with_brackets(file: Path) -> None:
    assert 'Write it in brackets: ["x.parquet"].' in refused(file, "data: {train_files: x.parquet}")


def test_a_list_with_too_few_entries_is_refused(file: Path) -> None:
    assert "an entry is missing; it must be a list of 2 numbers" in refused(file, "actor: {betas: [0.9]}")


def test_every_problem_is_reported_at_once(file: Path) -> None:
    text = refused(file, "rollout: {n: x, slots: 0}\nactor: {lr: -1}\nfoo: 1\nfoo: 2\n", "run.nam=x", "nonsense")
    assert text.startswith("6 problems in the configuration:")
    for key in ("rollout.n", "rollout.slots", "actor.lr", "foo (", "run.nam", "'nonsense'"):
        assert key in text


@pytest.mark.parametrize(
    ("text", "override", "key", "nearest"),
    [
        ("max_stalenes: 2", "run.seed=0", "max_stalenes", "staleness.max_stale"),
        ("optim: {lr: 0.1}", "run.seed=0", "optim.lr", "actor.lr"),
        ("rollout: {lr: 0.1}", "run.seed=0", "rollout.lr", "actor.lr"),
        ("run: {seed: 0}", "rollout.temprature=1", "rollout.temprature", "rollout.temperature"),
        ("run: {seed: 0}", "trainer.checkpoint.every_step=4", "trainer.checkpoint.every_step", "every_steps"),
        ("rollout: {n: 1}", "rollout.n.x=3", "rollout.n", "whole number"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_one(
    file: Path, text: str, override: str, key: str, nearest: str
) -> None:
    message = refused(file, text, override)
    assert key in message
    assert nearest in message


def test_every_key_of_an_unknown_section_is_answered(file: Path) -> None:
    text = refused(file, "actor_rollout_ref:\n  rollout: {n: 4}\n  actor: {optim: {lr: 1e-6}}\n")
    assert "actor_rollout_ref.rollout.n" in text
    assert "here it is rollout.n" in text
    assert "here it is actor.lr" in text


def test_a_duplicate_key_is_refused_with_both_lines(file: Path) -> None:
    text = refused(file, "run: {seed: 0}\nrollout:\n  n: 4\n  n: 8\n")
    assert f"rollout.n ({file} line 4)" in text
    assert "lines 3 and 4" in text


def test_nothing_is_interpolated(file: Path) -> None:
    assert "interpolation" in refused(file, "run: {dir: '${oc.env:HOME}/x'}")
    assert "interpolation" in refused(file, "run: {seed: 0}", "run.dir=${HOME}/x")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("run: [", "not YAML"),
        ("- a\n", "not sections with keys"),
        ("a: 1\n---\nb: 2\n", "line 2"),
        ("run:\n\t name: x\n", "line 2"),
        ("run: &r {dir: *r}\n", "contains itself"),
        ("run: !!python/object:os.system {}\n", "tag"),
        ("1: 2\n", "not a key"),
    ],
)
def test_text_that_is_no_configuration_is_refused_with_its_line(file: Path, text: str, says: str) -> None:
    message = refused(file, text)
    assert says in message
    assert str(file) in message


def test_a_missing_file_is_answered_with_its_neighbours(file: Path) -> None:
    file.write_text("")
    with pytest.raises(ConfigError, match=r"did you mean .*run\.yaml"):
        load(file.with_name("rnu.yaml"))


def test_a_file_that_is_not_text_is_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(file)


def test_an_impossible_combination_names_its_keys(file: Path) -> None:
    text = refused(file, "actor: {clip_ratio: 0.2, clip_ratio_low: 0.1}")
    assert "actor.clip_ratio = 0.2" in text
    assert "actor.clip_ratio_low = 0.1" in text


@pytest.mark.parametrize("override", ["+rollout.n=3", "~rollout.n=3", "rollout..n=3", "rollout.n", "=3", "9=3"])
def test_an_override_that_is_no_key_and_value_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="override"):
        load(None, [override])


def test_the_table_of_foreign_keys_leads_to_keys_that_exist() -> None:
    assert len(FOREIGN_KEYS) >= 40
    assert {row.system for row in FOREIGN_KEYS} == {"verl", "prime-rl", "AReaL", "TRL", "slime", "NeMo-RL"}
    for row in FOREIGN_KEYS:
        assert row.ours in known_keys() or row.ours == "", row
        assert row.key not in known_keys(), row
        assert row.note, row


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("max_off_policy_threshold", "staleness.limit"),
        ("max_off_policy_steps", "staleness.limit"),
        ("algorithm.max_off_policy_steps", "staleness.limit"),
        ("max_async_level", "staleness.limit"),
        ("max_head_offpolicyness", "staleness.limit"),
        ("max_trajectory_age_steps", "staleness.limit"),
        ("num_generations", "rollout.n"),
        ("n_samples_per_prompt", "rollout.n"),
        ("num_generations_per_prompt", "rollout.n"),
        ("rollout_batch_size", "schedule.groups_per_step"),
        ("trainer.total_epochs", "trainer.steps"),
        ("beta", "algorithm.kl_coef"),
        ("actor_rollout_ref.rollout.multi_turn.max_user_turns", "rollout.max_turns"),
        ("multi_turn.max_assistant_turns", "rollout.max_turns"),
    ],
)
def test_a_key_of_another_system_is_answered_with_ours(typed: str, ours: str) -> None:
    text = answer(typed)
    assert text is not None
    assert f"here it is {ours}: " in text
    with pytest.raises(ConfigError, match=ours):
        load(None, [f"{typed}=2"])


def test_a_slip_of_our_own_key_is_not_taken_for_another_systems() -> None:
    with pytest.raises(ConfigError, match=r"did you mean actor\.betas"):
        load(None, ["actor.beta=[0.9, 0.99]"])


def test_origins_say_where_each_value_comes_from(file: Path) -> None:
    origins = loaded(file, "run:\n  seed: 3\nmode: sync\n", "rollout.n=4", "schedule.steps_per_version=2").origins
    assert origins["run.seed"] == f"{file} line 2"
    assert origins["rollout.n"] == origins["schedule.steps_per_version"] == "override"
    assert origins["staleness.limit"] == "mode row sync"
    assert origins["actor.lr"] == "default"
    given = loaded(file, "algorithm:\n  loss_settings: {beta: 0.5}\n", "algorithm.selection_settings.threshold=0.1")
    assert given.config.algorithm.loss_settings == {"beta": 0.5}
    assert given.origins["algorithm.loss_settings"] == f"{file} line 2"
    assert given.origins["algorithm.selection_settings"] == "override"
    assert set(origins) == set(known_keys())


def test_the_resolved_tree_has_the_modes_row_filled_in_and_loads_as_the_same_run(file: Path) -> None:
    first = loaded(file, "run: {name: '010', seed: 3}\nactor: {lr: 1e-6}\n", "mode=colocate_async")
    assert first.resolved["staleness"]["limit"] == 1
    again = loaded(file, to_yaml(first))
    assert again.resolved == first.resolved
    assert again.config.plan == first.config.plan
    assert "# mode row colocate_async" in to_yaml(first)


def test_the_redis_url_comes_from_the_environment_when_it_is_not_set(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCRL_REDIS_URL", "redis://:hunter2@elsewhere:6379/0")
    first = loaded(file, "buffer: {url: null}")
    assert first.origins["buffer.url"] == "environment ASYNCRL_REDIS_URL"
    assert first.resolved["buffer"]["url"] == "redis://**********@elsewhere:6379/0"
    assert loaded(file, "", "buffer.url=redis://here:1/0").origins["buffer.url"] == "override"


def test_every_secret_comes_from_the_environment_when_it_is_not_set(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {key for key, field in known_keys().items() if is_secret(field)}
    assert set(SECRET_VARIABLES) == secrets, "one that only a file may hold is copied with it"
    for variable in SECRET_VARIABLES.values():
        monkeypatch.setenv(variable, "redis://:hunter2@a-secret-of-sixteen")
    found = loaded(file, "")
    assert {key: found.origins[key] for key in secrets} == {
        key: f"environment {variable}" for key, variable in SECRET_VARIABLES.items()
    }
    assert "hunter2" not in to_yaml(found)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hunter2@host:6379/0",
        "redis://:hunter2@host",
        "redis://:hun@ter2@host",
        "redis://:hunter2/x@host",
        "redis://host?password=hunter2",
        "redis://host?password=hunter2@x",
        "unix://:hunter2@/run/redis.sock",
        "hunter2",
    ],
)
def test_a_password_is_shown_nowhere(file: Path, url: str) -> None:
    first = loaded(file, "", f"buffer.url='{url}'")
    for text in (to_yaml(first), str(first.resolved), repr(first.config), str(first)):
        assert "hunter" not in text
        assert "ter2" not in text


def test_a_password_is_not_shown_in_an_error(file: Path) -> None:
    text = refused(file, "", "buffer.url=[hunter2]", "inference.urls=http://user:hunter2@host:1")
    assert "buffer.url" in text
    assert "hunter2" not in text


def test_every_key_is_described() -> None:
    keys = {key.name: key for key in describe()}
    assert set(keys) == set(known_keys())
    assert [key.name for key in keys.values() if not key.description] == []
    assert keys["rollout.n"].type == "a whole number >= 1"
    assert keys["staleness.policy"].type == "one of wait, drop"
    assert keys["staleness.limit"].type.endswith("or null")
    assert keys["actor.lr"].default == "1e-06"
    assert keys["metrics.sinks"].default == "[tensorboard]"
