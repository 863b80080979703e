"""Close a run: wait for the servers to hold its last version, audit the buffer, write the summary."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from asyncrl import waits
from asyncrl.config import Config
from asyncrl.errors import WaitTimeout
from asyncrl.metrics.console import RunView
from asyncrl.report import plots, rollout_facts, summary
from asyncrl.run.connections import open_weights
from asyncrl.run.outcome import Ended
from asyncrl.run.saved import best_checkpoint
from buffer import ReplayBuffer, label
from weightsync import VersionLog

SERVERS_S = 60.0  # an activation takes well under a second; a server that needs longer is reported as behind


@dataclass(frozen=True)
class Closing:
    """The summary as text for people, and the path of its file."""

    text: str
    path: Path


async def finish(config: Config, url: str, buffer: ReplayBuffer, end: Ended, *, view: RunView) -> Closing:
    """Write summary.json and the plots of the run directory; returns where, with the text to show."""
    log, _ = open_weights(config, url)
    servers = await _servers(log, view) if end.reason == "finished" else compare(log)
    audit = await waits.in_thread(buffer.audit)
    directory = config.run.directory
    # They end with the run's reports otherwise.
    rollout_facts.write(directory, rollout_facts.of_reports(await waits.in_thread(buffer.reports)))
    facts = summary.build(directory, audit=audit.to_json(), servers=servers, lag_limit=config.plan.limit)
    facts |= {"steps_asked": config.trainer.steps, "ended": asdict(end), "best_checkpoint": best_checkpoint(config)}
    path = directory / "summary.json"
    path.write_text(json.dumps(facts, indent=2) + "\n")
    plots.draw(directory, lag_limit=config.plan.limit)
    return Closing(summary.render(facts), path)


async def _servers(log: VersionLog, view: RunView) -> dict[str, object]:
    """Compare every live server with the head, once all of them hold it or the time is up."""
    try:
        return await waits.until(
            "run waits for servers to hold the last version",
            lambda: found if (found := compare(log))["equal"] else None,
            why=lambda: f"servers: {compare(log)['servers']}",
            wake=log.wait,
            deadline_s=SERVERS_S,
        )
    except WaitTimeout as late:
        view.message(str(late))
        return compare(log)


def compare(log: VersionLog) -> dict[str, object]:
    """Digest of each live server against the head's: {"equal", "head", "digest", "servers": {name: {...}}}."""
    head = log.head()
    acks = log.acks()
    servers = {
        name: {"version": label(ack.version), "digest": f"{ack.digest:016x}", "state": ack.state}
        for name, ack in acks.items()
    }
    equal = (
        head is not None
        and bool(acks)
        and all((ack.version, ack.digest) == (head.version, head.digest) for ack in acks.values())
    )
    return {
        "equal": equal,
        "head": label(head.version) if head is not None else None,
        "digest": f"{head.digest:016x}" if head is not None else None,
        "servers": servers,
    }
