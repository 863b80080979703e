"""A worker's bounds fit into the time that its supervisor gives it, and say what the configuration says."""

from asyncrl.config import Config
from asyncrl.run.rollout_worker import settings_of


def test_finishing_and_parking_leave_time_for_leaving() -> None:
    config = Config()
    settings = settings_of(config)
    assert settings.stop_timeout_s + settings.park_timeout_s < config.cluster.stop_timeout_s
    assert settings.groups.cut_timeout_s < settings.park_timeout_s, "what came back is parked within it"


def test_partials_are_parked_as_configured() -> None:
    config = Config()
    assert settings_of(config).groups.park_every_s == config.rollout.partials.interval_s == 60.0
    off = config.rollout.partials.model_copy(update={"interval_s": None, "on_stop": False})
    rollout = config.rollout.model_copy(update={"partials": off})
    groups = settings_of(config.model_copy(update={"rollout": rollout})).groups
    assert (groups.park_every_s, groups.parks_when_given_back) == (None, False)
