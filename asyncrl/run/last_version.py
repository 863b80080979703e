"""A rank stays until the servers hold its last version, where parts end with the process that made them."""

import logging

from asyncrl import waits
from asyncrl.errors import WaitTimeout
from weightsync import Transport, VersionLog

HANDED_OVER_S = 60.0  # staging and activating take seconds; a server that needs longer has another trouble

log = logging.getLogger(__name__)


async def handed_over(versions: VersionLog, transport: Transport, *, deadline_s: float = HANDED_OVER_S) -> None:
    """Return once every living server holds head. One that does not in time keeps what it has, and is named."""
    if transport.parts_outlive_writer:
        return
    try:
        await waits.until(
            "trainer waits for servers to read its last version",
            lambda: None if behind(versions) else True,
            why=lambda: f"{', '.join(behind(versions))} read it from this process's memory",
            wake=versions.watch(("server",)).wait,
            deadline_s=deadline_s,
        )
    except WaitTimeout as late:
        log.warning("%s", late)


def behind(versions: VersionLog) -> list[str]:
    """Names of living servers that have not acknowledged head."""
    head = versions.head()
    held = {name: ack.version for name, ack in versions.acks().items()}
    staying = (name for name, server in versions.servers().items() if server.state not in ("draining", "drained"))
    return sorted(name for name in staying if head is not None and held.get(name) != head.version)
