"""Notice that this machine is about to be taken away: a file appears, or a command says so.

consumes  inference.preemption            waits for  the notice
produces  a stop in a hurry               unblocks   serve-rollout: workers park what they have, servers leave

What cannot be looked at is told once and looked at again: a notice that is missed costs what was sampled since groups
were last parked, a false one costs the machine.
"""

import asyncio
import logging
from contextlib import suppress

from asyncrl import waits
from asyncrl.config.rollout import PreemptionConfig

log = logging.getLogger(__name__)


async def watch_for_notice(config: PreemptionConfig, stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """Set `stop` and `hurry` when the notice comes. Does nothing where no way of giving one is configured."""
    if config.file is None and not config.command:
        return
    told = ""
    while not stop.is_set():
        notice, trouble = await _look(config)
        if trouble and trouble != told:
            log.warning("no preemption notice can be had: %s", trouble)
        told = trouble
        if notice:
            log.warning("a preemption is announced (%s): stopping in a hurry", notice)
            hurry.set()
            stop.set()
            return
        with waits.timed("serve-rollout watches for a preemption"), suppress(TimeoutError):
            async with asyncio.timeout(config.every_s):
                await stop.wait()


async def _look(config: PreemptionConfig) -> tuple[str, str]:
    """What announces a preemption, and why it cannot be known; both mostly empty."""
    if config.file is not None and config.file.exists():
        return f"{config.file} is there", ""
    if not config.command:
        return "", ""
    try:
        process = await asyncio.create_subprocess_exec(
            *config.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        return "", f"inference.preemption.command {config.command[0]!r} cannot be run: {error}"
    try:
        async with asyncio.timeout(config.command_timeout_s):
            code = await process.wait()
    except TimeoutError:
        return "", f"{config.command[0]!r} took longer than command_timeout_s = {config.command_timeout_s:g} s"
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return (f"{config.command[0]!r} exited with 0", "") if code == 0 else ("", "")
