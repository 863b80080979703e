"""What a resumed trainer takes up: counters, learning rate, checkpoint; never a silent mixture (B166 to B169)."""

import logging
from pathlib import Path

import pytest

from asyncrl.errors import CheckpointError, ConfigError
from asyncrl.load_config import load
from buffer.versions import pack
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import make_buffer, make_config, rollout_for, start_trainer

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "tiny_cpu.yaml"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def stopped(model_dir, tmp_path_factory):
    """The directory and the lines of a run of four steps that saved at steps 2 and 4."""
    directory = tmp_path_factory.mktemp("run")
    run = start_trainer(make_config(directory, model_dir, actor={"warmup_steps": 10}), fresh_buffer(model_dir))
    with rollout_for(run).running():
        assert run.go().step == 4
    return directory, run.sink.lines


def fresh_buffer(model_dir):
    return make_buffer(make_config(Path("unused"), model_dir))


def resumed(model_dir, directory, steps=6):
    """A trainer process that is to go on in that directory; the buffer was lost."""
    config = make_config(directory, model_dir, trainer={"steps": steps}, actor={"warmup_steps": 10})
    return start_trainer(config, make_buffer(config))


def test_step_version_and_learning_rate_go_on_together(model_dir, stopped):
    """B166, B168: after a checkpoint at step 4 the next lines are step 5 and 6, in a warm-up of ten steps."""
    directory, before = stopped
    run = resumed(model_dir, directory)
    with rollout_for(run).running():
        outcome = run.go(resume=True)
    assert (outcome.step, outcome.version) == (6, pack(2, 6))
    rates = {step: values["actor/lr"] for step, _, values in [*before, *run.sink.lines] if "actor/lr" in values}
    assert rates == pytest.approx({step: 1e-3 * step / 10 for step in range(1, 7)})


def test_a_checkpoint_under_another_ones_name_is_refused_with_both_versions(model_dir, tmp_path):
    """B168: step and version come from one name; a name that its contents contradict starts nothing."""
    run = start_trainer(make_config(tmp_path, model_dir, trainer={"steps": 2}), fresh_buffer(model_dir))
    with rollout_for(run).running():
        run.go()
    (saved,) = (tmp_path / "checkpoints").glob("1.2-step2")
    saved.rename(saved.with_name("1.20-step20"))
    with pytest.raises(CheckpointError, match=r"named version 20 at step 20, but holds version 2 at step 2"):
        resumed(model_dir, tmp_path).go(resume=True)


def test_a_step_to_resume_from_cannot_be_asked_for(tmp_path):
    """B169: `resume_step: 15` is refused when it is read; nobody starts from scratch because 15 is not there."""
    text = CONFIG.read_text()
    for key in ("trainer.resume_step", "trainer.resume_mode"):
        with pytest.raises(ConfigError, match=key):
            load(CONFIG, [f"{key}=15"])
    file = tmp_path / "run.yaml"
    file.write_text(text.replace("trainer:\n", "trainer:\n  resume_step: 15\n", 1))
    with pytest.raises(ConfigError, match=r"trainer\.resume_step .*line"):
        load(file)


def test_a_resume_without_a_checkpoint_says_that_it_starts_from_the_beginning(model_dir, tmp_path, caplog):
    """B169: an empty folder is a fresh start, with a line that says so."""
    run = resumed(model_dir, tmp_path, steps=1)
    with rollout_for(run).running(), caplog.at_level(logging.INFO):
        assert run.go(resume=True).step == 1
    assert "there is no checkpoint to resume from; starting from version 0.0" in caplog.text
