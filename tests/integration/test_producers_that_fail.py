"""A trainer whose producers all fail: it ends in time, with an exit code, and says what they failed of (B008)."""

import pytest

from asyncrl.errors import WaitTimeout
from buffer import Claim
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import make_buffer, make_config, start_trainer


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def test_the_end_of_the_wait_names_what_the_producers_failed_of(model_dir, tmp_path):
    """B008: every worker raises at its start; the trainer asks for four groups with a deadline."""
    config = make_config(
        tmp_path, model_dir, trainer={"lease_wait_s": 0.5}, buffer={"max_attempts": 1}, staleness={"limit": 0}
    )
    buffer = make_buffer(config)
    run = start_trainer(config, buffer)
    lease = run.parts.buffer.lease

    def fail_all(*where, after, wait_s):
        # Stands for workers: each group that the trainer's window admits fails at once.
        while isinstance(claim := buffer.reserve("worker-3"), Claim) and claim.ordinal < 8:
            buffer.fail(claim, "environment_failed", "ModuleNotFoundError: No module named 'sandbox'")
        return lease(*where, after=after, wait_s=min(wait_s, 0.05))

    run.parts.buffer.lease = fail_all
    with pytest.raises(WaitTimeout) as late:
        run.go()
    assert late.value.exit_code != 0
    message = str(late.value)
    assert "need 4 groups" in message
    assert "environment_failed 8" in message
    assert "No module named 'sandbox'" in message


def test_a_wait_that_lost_nothing_says_nothing_of_losses(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir, trainer={"lease_wait_s": 0.1})
    with pytest.raises(WaitTimeout) as late:
        start_trainer(config, make_buffer(config)).go()
    assert "Lost so far" not in str(late.value)
    assert "is serve-rollout running?" in str(late.value)
