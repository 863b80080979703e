"""What holds for all tests: how they are handed out, and what hypothesis may take offence at."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Whether an example takes 200 ms depends on what else the machine does: the time-outs of tests are pytest's.
settings.register_profile("asyncrl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("asyncrl")


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Of `--dist loadfile`; others are xdist's own."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.support.scheduling import LongestFirst

    return LongestFirst(config, log)
