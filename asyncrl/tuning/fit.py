"""Make a profile of a run from what it left in its directory: config.yaml, metrics.jsonl, rollout/facts.json."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from asyncrl.config import Config
from asyncrl.errors import DataError
from asyncrl.load_config import load
from asyncrl.report import rollout_facts
from asyncrl.report.answer_lengths import middle_of
from asyncrl.report.length_bias import CLASS
from asyncrl.report.lines import Line, read, surviving
from asyncrl.report.speeds import Durations, Served
from asyncrl.report.speeds import Speeds as Measured
from asyncrl.tuning.measured import counted_steps, waited_s
from asyncrl.tuning.prediction import warm_up_steps
from asyncrl.tuning.profile import Answers, Profile, Setting, Speeds, Workload
from asyncrl.tuning.simulator import simulate

WAIT = "timing_s/wait/"
CHECKPOINT = f"{WAIT}trainer writes a checkpoint"
NOTICE_STEPS = 30
ESS = re.compile(r"training/off_policy/lag_(?P<lag>\d+)/ess\Z")
PUBLISH = ("align", "upload", "flip")
"""Phases of a publish after which servers see the version."""


def fit(run_dir: Path) -> Profile:
    """The profile of a run that has ended.

    Raises:
        ConfigError: its config.yaml cannot be read.
        DataError: something that the simulator needs was not measured; the text says what.
    """
    config = load(run_dir / "config.yaml", []).config
    lines = surviving(read(run_dir))
    measured = rollout_facts.read(run_dir).speeds
    if config.plan.lends:
        raise DataError(
            f"{run_dir} shares devices between the clusters, which the simulator does not play: it would predict two "
            "clusters that work at once. Fit a run with mode separate_async and schedule.lend_trainer_gpus false."
        )
    setting = setting_of(config)
    steps = counted_steps(lines, setting, run_dir)
    if not measured.served:
        raise DataError(
            f"{run_dir}/rollout/facts.json has no speeds of servers, so nobody knows how fast they generate. It is "
            "written when a run finishes or is stopped; let this one end, or give a profile in YAML."
        )
    return with_notice(
        Profile(
            setting=setting,
            workload=_workload(config),
            answers=_answers(lines, steps, measured),
            speeds=_speeds(lines, steps, measured, config),
            ess=_ess(lines),
        ),
        measured.waited,
    )


def with_notice(profile: Profile, waited: Durations) -> Profile:
    """The profile with the seconds that nothing measures by itself: until workers notice that a server is back.

    Requests that start with a version wait for the whole of its way, so that what their median is longer than that of
    a simulation without it is what is missing.
    """
    if not waited.calls:
        return profile
    steps = warm_up_steps(profile.setting) + NOTICE_STEPS
    without_s = simulate(profile, profile.setting, steps=steps).server_wait_s
    if without_s == 0.0:
        return profile
    speeds = profile.speeds.model_copy(update={"notice_s": max(0.0, _median(waited) - without_s)})
    return profile.model_copy(update={"speeds": speeds})


def _median(durations: Durations) -> float:
    """Mean seconds of the class that the middle call is in."""
    left = sum(durations.calls.values()) / 2
    for largest in sorted(durations.calls):
        left -= durations.calls[largest]
        if left <= 0:
            return durations.seconds[largest] / durations.calls[largest]
    return 0.0


def setting_of(config: Config) -> Setting:
    """What of a configuration the table varies."""
    return Setting(
        limit=config.plan.limit,
        policy=config.staleness.policy,
        steps_per_version=config.plan.steps_per_version,
        servers=config.inference.servers + len(config.inference.urls),
        ranks=config.trainer.parallel.fsdp,
        slots=config.rollout.slots * config.rollout.workers,
    )


def _workload(config: Config) -> Workload:
    staleness, parallel = config.staleness, config.trainer.parallel
    return Workload(
        groups_per_step=config.schedule.groups_per_step,
        group_size=config.rollout.n,
        on_stale=staleness.on_stale,
        max_stale=staleness.max_stale,
        order=staleness.order,
        wait_deadline_s=staleness.wait_deadline_s,
        checkpoint_every=config.trainer.checkpoint.every_steps,
        devices_per_server=config.inference.tp,
        devices_per_rank=parallel.replicate * parallel.cp * parallel.tp,
    )


def _answers(lines: Sequence[Line], steps: Sequence[Line], measured: Measured) -> Answers:
    lengths = _lengths(lines)
    return Answers(
        lengths=lengths,
        in_group_share=_in_group_share(lengths, steps),
        turns=max(1.0, _mean(steps, "num_turns/mean", default=1.0)),
        prompt_tokens=_mean(steps, "prompt_length/mean"),
        environment_s=_seconds(measured.environment),
    )


def _ess(lines: Sequence[Line]) -> dict[int, float]:
    """Lag -> mean over all steps that trained tokens of it."""
    found: dict[int, list[float]] = {}
    for line in lines:
        for name, value in line.values.items():
            if (match := ESS.match(name)) is not None:
                found.setdefault(int(match["lag"]), []).append(value)
    return {lag: round(fmean(values), 4) for lag, values in sorted(found.items())}


def _lengths(lines: Sequence[Line]) -> dict[int, float]:
    """Middle of a class -> answers of it, trained ones and those that left: dropping must not hide long ones."""
    classes: Counter[int] = Counter()
    for line in lines:
        for name, answers in line.values.items():
            if (match := CLASS.match(name)) is not None:
                classes[max(1, round(middle_of(int(match["largest"]))))] += int(answers)
    return {length: float(answers) for length, answers in sorted(classes.items()) if answers}


def _in_group_share(lengths: Mapping[int, float], steps: Sequence[Line]) -> float:
    answers = sum(lengths.values())
    mean = sum(length * count for length, count in lengths.items()) / answers
    variance = sum((length - mean) ** 2 * count for length, count in lengths.items()) / answers
    within = [line.values["response_length/in_group_std"] ** 2 for line in steps]
    return min(1.0, fmean(within) / variance) if variance > 0 else 1.0


def _seconds(durations: Durations) -> dict[float, float]:
    """Mean seconds of a class -> calls of it."""
    found: Counter[float] = Counter()
    for largest, calls in durations.calls.items():
        found[round(durations.seconds[largest] / calls, 6)] += calls
    return {seconds: float(calls) for seconds, calls in sorted(found.items())}


def _speeds(lines: Sequence[Line], steps: Sequence[Line], measured: Measured, config: Config) -> Speeds:
    versions = config.plan.steps_per_version
    updating_s = [line.values["timing_s/update_actor"] for line in steps]
    blocked_s = [line.values["timing_s/publish_blocked"] for line in steps]
    saving_s = [line.values.get(CHECKPOINT, 0.0) for line in steps]
    rest_s = [
        line.values["timing_s/step"] - waited_s(line) - updating - blocked - saving
        for line, updating, blocked, saving in zip(steps, updating_s, blocked_s, saving_s, strict=True)
    ]
    tokens = sum(line.values["perf/total_num_tokens"] for line in steps)
    servers = config.inference.servers + len(config.inference.urls)
    activations = max(measured.servers.get("activations", 0.0), 1.0)
    pauses_s = measured.servers.get("pause_s", 0.0) - measured.servers.get("longest_pause_s", 0.0)
    return Speeds(
        token_s=_token_s(measured.served, config.rollout.workers),
        step_s=max(0.0, fmean(rest_s)),
        trained_token_s=sum(updating_s) * config.trainer.parallel.fsdp / tokens,
        blocked_s=0.0 if config.plan.limit == 0 else versions * fmean(blocked_s),
        publish_s=sum(_published(lines, phase) for phase in PUBLISH),
        stage_s=measured.servers.get("stage_s", 0.0) / activations,
        pause_s=max(0.0, pauses_s) / max(activations - servers, 1.0),
        checkpoint_s=_published_mean(lines, CHECKPOINT, fmean),
    )


def _token_s(served: Mapping[int, Served], workers: int) -> dict[float, float]:
    """Requests at once on a server -> seconds of a token. A worker knows its own requests; the others have as many."""
    return {
        round(workers * one.at_once / one.requests, 3): one.seconds / one.tokens
        for one in served.values()
        if one.tokens and one.requests
    }


def _published(lines: Sequence[Line], phase: str) -> float:
    return _published_mean(lines, f"timing_s/publish/{phase}", median)


def _published_mean(lines: Sequence[Line], name: str, mean: Callable[[Sequence[float]], float]) -> float:
    """Of the lines that have it: a version is published beside the step after it."""
    values = [line.values[name] for line in lines if name in line.values]
    return mean(values) if values else 0.0


def _mean(steps: Sequence[Line], name: str, *, default: float = 0.0) -> float:
    values = [line.values[name] for line in steps if name in line.values]
    return fmean(values) if values else default
