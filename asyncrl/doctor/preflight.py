"""Every check in order, none hiding another."""

from collections.abc import Callable, Iterable, Sequence

from asyncrl.config import Config
from asyncrl.doctor.environments import check_environment
from asyncrl.doctor.finding import Finding
from asyncrl.doctor.inputs import check_data, check_model
from asyncrl.doctor.ledger import check_redis, redis_url, without_password
from asyncrl.doctor.machine import check_devices, check_disk, check_parts_server, check_ports
from asyncrl.doctor.rewards import check_rewards
from asyncrl.doctor.sampling import check_sampling
from asyncrl.doctor.software import check_packages, check_server, check_versions
from asyncrl.doctor.tools import check_tools
from asyncrl.doctor.weights import check_weights


def check(config: Config) -> list[Finding]:
    """Check everything a run with this configuration needs; every check runs, whatever the others found."""
    checks: Sequence[tuple[str, Callable[[Config], Iterable[Finding]]]] = (
        ("packages", check_packages),
        ("versions", check_versions),
        ("Redis", check_redis),
        ("weights directory", check_weights),
        ("disk", check_disk),
        ("ports", check_ports),
        ("weights over tcp", check_parts_server),
        ("model", check_model),
        ("data", check_data),
        ("environment", check_environment),
        ("rewards", check_rewards),
        ("tools", check_tools),
        ("sampling", check_sampling),
        ("devices", check_devices),
        ("server", check_server),
    )
    findings: list[Finding] = []
    for name, run in checks:
        try:
            findings += run(config)
        except Exception as error:  # a check that breaks must not hide what the others would say
            text = without_password(f"{type(error).__name__}: {error}", redis_url(config))
            findings.append(Finding(name, False, f"the check itself failed: {text}", "This is a bug of the doctor."))
    return findings
