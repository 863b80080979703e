"""`asyncrl train`: the supervisor of the trainer's ranks, and of the rollout side where devices are shared.

consumes  metrics.jsonl and reports, to show them     waits for     the ranks' ends, the stop flag, a signal
produces  restarts from the newest checkpoint;        unblocked by  their exits
          the summary at the end
"""

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from asyncrl import waits
from asyncrl.cluster import Child, Failure, Seat, Wanted
from asyncrl.config import Config
from asyncrl.errors import AsyncrlError, ConfigError, FencedOut, PreflightError, ProcessDied, WaitTimeout
from asyncrl.load_config import LoadedConfig, to_yaml
from asyncrl.metrics.console import RunView
from asyncrl.placement import Placement
from asyncrl.rollout.chat import ChatTemplate
from asyncrl.run.allocator import heap_settings
from asyncrl.run.connections import let_go, open_buffer, redis_url
from asyncrl.run.finish import finish
from asyncrl.run.handover import write_config
from asyncrl.run.identity import open_prompts, run_record
from asyncrl.run.machines import open_cluster, place, require_lent_servers_reachable, unless_stopped
from asyncrl.run.outcome import clear_outcome, read_outcome, undone
from asyncrl.run.parting import Parting
from asyncrl.run.progress import MetricsTail
from asyncrl.run.rollout_side import RolloutSide, num_servers_beside_trainer, side_beside_trainer
from asyncrl.run.saved import has_checkpoints
from asyncrl.run.serve_rollout import BEAT_S
from asyncrl.run.signals import stop_event
from asyncrl.run.teacher_places import with_addresses
from asyncrl.trainer.heads import require_whole_heads_of
from buffer import ReplayBuffer

NO_RESTART = (2, 3, 5, 6, FencedOut.exit_code, WaitTimeout.exit_code)
"""Exit codes that starting again would repeat (configuration, machine, disk, numbers), or that forbid it."""

LOST_S = 10.0
"""Seconds for ranks that have lost one to say what they met themselves. There is nothing to save without all of them,
and one that waits for the lost one on its device hears no signal."""


def train(loaded: LoadedConfig, *, resume: bool) -> int:
    """Run the trainer cluster until it has finished, or was stopped or failed; returns the exit code."""
    config = loaded.config
    directory = config.run.directory
    directory.mkdir(parents=True, exist_ok=True)
    with only_trainer(directory):
        if has_checkpoints(config) and not resume:
            raise ConfigError(
                f"run.name = {config.run.name}: {directory} holds checkpoints of an earlier run. "
                "Go on with it by --resume, or choose another run.name or run.dir."
            )
        require_whole_heads_of(config.model.path, config.trainer.parallel.tp)
        chat = ChatTemplate.from_model_dir(config.model.path)
        prompts, held_out = open_prompts(config, chat)
        (directory / "config.yaml").write_text(to_yaml(loaded))
        with redis_url(config) as url, open_buffer(config, url) as buffer:
            require_lent_servers_reachable(config, url)
            buffer.register(run_record(config, prompts, chat))
            return asyncio.run(Supervisor(config, url, buffer, held_out=len(held_out or ())).run(resume=resume))


class Supervisor:
    """Starts the ranks, starts them again after a death, shows what they do, and closes the run with its summary."""

    def __init__(self, config: Config, url: str, buffer: ReplayBuffer, *, held_out: int) -> None:
        self._config, self._url, self._buffer, self._held_out = config, url, buffer, held_out
        self._directory = config.run.directory
        self._cluster = open_cluster(config, self._directory / "logs", url)
        self._ranks: list[Child] = []
        self._parting = Parting(config.cluster.hang_timeout_s)
        self._restarts, self._step = 0, 0
        self._tail = MetricsTail(self._directory / "metrics.jsonl")
        self._mark = buffer.stop_mark()  # a stop that was asked for before was for those who ran then

    async def run(self, *, resume: bool) -> int:
        """Supervise to the end.

        Raises:
            ProcessDied: a rank failed, or all of them left before the work was done and nobody had asked for that.
        """
        plan = self._config.plan
        config, teachers = with_addresses(self._config) if plan.shares_gpus else (self._config, ())
        stop = stop_event(at_once=self._leave)  # after Ray's own handlers
        wanted = Wanted(
            ranks=config.trainer.parallel.world,
            servers=num_servers_beside_trainer(config, len(teachers)),
            tp=config.inference.tp,
            workers=config.rollout.workers if plan.shares_gpus else 0,
            shares_devices=plan.lends,
        )
        try:
            placement = await place(self._cluster, wanted, self._config, self._url, stop)
            if placement is None:
                return 0
            config_file = write_config(config, self._directory / "logs" / "config.json")
            side = side_beside_trainer(config, self._cluster, config_file, placement, teachers)
            with RunView(f"{config.run.name}: {config.mode}", total_steps=config.trainer.steps) as view:
                if side is not None:
                    side.start()
                await self._start_ranks(config_file, placement, stop, resume=resume)
                await self._watch(view, side, config_file, placement, stop)
                end, is_asked = read_outcome(self._directory), await self._is_asked(stop)
                report = await finish(config, self._url, self._buffer, end, view=view)
                if end.reason == "finished":
                    self._buffer.stop()  # the rollout cluster of a finished run has nothing left to do
                if side is not None:
                    await side.stop()
        finally:
            self._cluster.kill()
        print(report.text)
        print(report.path)
        if not is_asked and (why := undone(end, self._config.trainer.steps)):
            raise ProcessDied(why)
        return 0

    def _leave(self) -> None:
        self._cluster.kill()
        let_go()

    async def _is_asked(self, stop: asyncio.Event) -> bool:
        """Whether this command is to stop."""
        return stop.is_set() or await waits.in_thread(self._buffer.stop_mark) != self._mark

    async def _start_ranks(self, config_file: Path, placement: Placement, stop: asyncio.Event, *, resume: bool) -> None:
        """Start every rank, or none if the command is stopped before there is room for them."""
        seats = [Seat("ranks", rank, devices) for rank, devices in enumerate(placement.ranks)]
        self._ranks, self._parting = [], Parting(self._config.cluster.hang_timeout_s)
        clear_outcome(self._directory)  # a stop may come before rank 0 does it
        where = await unless_stopped(stop, self._cluster.meeting_point(seats[0]))
        if where is None:
            return
        address, port = where
        arguments = ["--config", str(config_file), "--held-out", str(self._held_out), *(["--resume"] if resume else [])]
        together = {"WORLD_SIZE": str(len(seats)), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
        self._ranks = [
            self._cluster.start(
                "trainer-rank",
                f"rank-{seat.index}",
                arguments,
                # Each sees its own device only, as the first.
                {"RANK": str(seat.index), "LOCAL_RANK": "0", **together, **heap_settings(len(seat.devices))},
                seat=seat,
            )
            for seat in seats
        ]

    async def _watch(
        self, view: RunView, side: RolloutSide | None, config_file: Path, placement: Placement, stop: asyncio.Event
    ) -> None:
        """Return when every rank has ended well; raise what cannot be mended."""
        while True:
            self._follow(view)
            codes = [rank.exit_code() for rank in self._ranks]
            if all(code == 0 for code in codes):
                return
            if failures := failures_of(self._ranks) or await self._stayed():
                if self._is_complete():
                    for failure in failures:
                        view.message(f"{failure.message}; the run had ended before in good order, and lost nothing")
                    return
                await self._restart(failures, view, config_file, placement, stop)
            if side is not None:
                for event in side.tend():
                    view.message(event)
            if await self._is_asked(stop):
                return await self._stop(view)
            view.update(await waits.in_thread(self._buffer.reports))
            await waits.pause("trainer supervisor's beat", BEAT_S)

    async def _stayed(self) -> list[Failure]:
        """Ranks that are still there long after they had a reason to be: they are stopped, and have failed."""
        overdue = self._parting.overdue(self._ranks, is_complete=self._is_complete())
        if overdue:
            await self._cluster.stop(list(overdue), timeout_s=min(LOST_S, self._config.cluster.stop_timeout_s))
        return [Failure(rank.role, -signal.SIGKILL, str(late)) for rank, late in overdue.items()]

    def _is_complete(self) -> bool:
        """Whether rank 0 has said that all is saved: no rank has anything to do then that the run would miss."""
        return read_outcome(self._directory).reason in ("finished", "stopped")

    def _follow(self, view: RunView) -> None:
        """Show the steps that are done."""
        for step in self._tail.new_lines():
            view.step(step)
            self._step = int(step["step"])

    async def _stop(self, view: RunView) -> None:
        """The ranks leave within their grace time, in good order or not; none is started again.

        Raises:
            ProcessDied: with the exit code of a rank that failed otherwise, at its last checkpoint for example.
        """
        grace_s = self._config.trainer.stop_grace_s
        view.message(f"stopping: the trainer finishes its step and writes a checkpoint, within {grace_s:g} s")
        await self._cluster.stop(self._ranks, timeout_s=grace_s)
        self._follow(view)
        for failure in failures_of(self._ranks):
            if failure.exit_code in NO_RESTART:
                raise self._ended(failure, failure.exit_code)
            view.message(f"{failure.message}; a resume goes on from the newest checkpoint")

    async def _restart(
        self,
        failures: Sequence[Failure],
        view: RunView,
        config_file: Path,
        placement: Placement,
        stop: asyncio.Event,
    ) -> None:
        """All ranks go back to the newest checkpoint together; what a restart would repeat is raised instead."""
        left = [rank for rank in self._ranks if rank in self._cluster.children]
        await self._cluster.stop(left, timeout_s=min(LOST_S, self._config.cluster.stop_timeout_s))
        self._follow(view)
        failed = cause(failures, failures_of(self._ranks))
        if failed.exit_code in NO_RESTART:
            raise self._ended(failed, failed.exit_code)
        if self._restarts >= self._config.trainer.max_restarts:
            raise self._ended(failed, ProcessDied.exit_code)
        self._restarts += 1
        view.message(
            f"{failed.message}, after step {self._step}; all ranks go on from the newest checkpoint "
            f"({self._restarts} of {self._config.trainer.max_restarts} restarts)"
        )
        await self._start_ranks(config_file, placement, stop, resume=True)

    def _ended(self, failed: Failure, exit_code: int) -> AsyncrlError:
        """The error of a rank that ended for good, with its own words and exit code, and how far the run has come."""
        steps = self._config.trainer.steps
        when = f"after step {self._step} of {steps}" if self._step else f"before the first of {steps} steps was done"
        error = ProcessDied(f"{failed.message.rstrip('.')}. This was {when}.")
        error.exit_code = exit_code
        return error


def failures_of(ranks: Sequence[Child]) -> list[Failure]:
    """Of the ranks that ended badly, in their order."""
    return [failure for rank in ranks if (failure := rank.failure()) is not None]


def cause(seen: Sequence[Failure], after_stop: Sequence[Failure]) -> Failure:
    """Which failure explains the others: ranks that lose one of them fail too, as fast as it is noticed.

    Args:
        seen: before the others were stopped; at least one.
        after_stop: of all ranks, when all have ended. Among them a reason that forbids a restart counts; a signal does
            not, since the stop ends with one.
    """
    for failure in (*seen, *after_stop):
        if failure.exit_code in NO_RESTART:
            return failure
    return min(seen, key=lambda failure: failure.exit_code >= 0)  # a signal before an error


@contextmanager
def only_trainer(directory: Path) -> Iterator[None]:
    """Hold the run directory's lock: two trainers in it would overwrite each other's metrics and checkpoints."""
    with (directory / "train.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise PreflightError(
                f"{directory} is in use by another `asyncrl train` (pid {file.read().strip() or 'unknown'}). "
                "Stop it first, or choose another run.dir."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
