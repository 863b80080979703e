"""Predict what other settings of a run would come to, and recommend one: limit, policy, steps per version, split.

The profile is fitted from a run that has ended (its metrics, its configuration and what its rollout side measured), or
read from a YAML file. Two clusters with these speeds are then simulated; nothing is started.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from asyncrl.commands.tables import columns

if TYPE_CHECKING:
    from asyncrl.tuning.profile import Profile, Setting
    from asyncrl.tuning.recommend import Recommendation
    from asyncrl.tuning.search import Row

HEAD = ("limit", "policy", "steps/version", "servers+ranks", "tokens/s", "stall", "lag", "max", "stale", "bias", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("source", type=Path, metavar="RUN_DIR|PROFILE", help="a run's directory, or a profile in YAML")
    parser.add_argument("--limits", type=_numbers(0), help="staleness limits to try; default: 0,1,2,4,8")
    parser.add_argument("--policies", type=_policies, help="of wait,drop; default: both")
    parser.add_argument("--steps-per-version", type=_numbers(1), help="default: 1,2,4 and the run's")
    parser.add_argument("--devices", type=int, help="share out so many devices over both sides; default: as they are")
    parser.add_argument("--slots", type=int, help="episodes played at once instead of the run's, over all workers")
    parser.add_argument("--steps", type=int, help="steps to simulate for each row; default: by the size of a step")
    parser.add_argument("--seed", type=int, default=0, help="of the simulated prompts")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the profile as YAML, to edit and try again")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="where the picture goes; default: RUN_DIR/tune.png")
    parser.add_argument("--json", action="store_true", help="print the profile, the rows and the choice as JSON")


def run(args: argparse.Namespace) -> int:
    """Fit, search, print."""
    from asyncrl.tuning import picture, profile_file
    from asyncrl.tuning.recommend import recommend
    from asyncrl.tuning.search import search

    profile = _profile(args.source)
    if args.save is not None:
        profile_file.write(profile, args.save)
    rows = search(profile, _settings(args, profile), steps=args.steps, seed=args.seed)
    choice = recommend(rows)
    path = args.plot or (args.source / picture.NAME if args.source.is_dir() else None)
    drawn = path is not None and picture.draw(rows, path)
    if args.json:
        print(json.dumps(_to_json(profile, rows, choice)))
        return 0
    print(render(profile, rows, choice))
    if drawn:
        print(f"\npicture: {path}", file=sys.stderr)
    return 0


def render(profile: "Profile", rows: "Sequence[Row]", choice: "Recommendation") -> str:
    """The table, what it is compared with, and the choice."""
    table = columns(HEAD, [_cells(row, _remark(row, profile.setting, choice)) for row in rows])
    keys = ", ".join(f"{name}={value}" for name, value in _keys(choice.row.setting).items())
    lags = ", ".join(f"{value:.3f} at lag {lag}" for lag, value in profile.ess.items())
    ess = f"\nEffective sample size in this run: {lags}. How much lag is borne, only training shows." if lags else ""
    return f"{table}\n\nRecommended: {choice.why}\nSet {keys}.{ess}"


def _profile(source: Path) -> "Profile":
    from asyncrl.tuning import profile_file
    from asyncrl.tuning.fit import fit

    return fit(source) if source.is_dir() else profile_file.read(source)


def _settings(args: argparse.Namespace, profile: "Profile") -> "list[Setting]":
    from asyncrl.tuning.search import settings, splits_of

    base = profile.setting if args.slots is None else profile.setting.model_copy(update={"slots": args.slots})
    splits = [(base.servers, base.ranks)]
    if args.devices is not None:
        splits = splits_of(args.devices, profile.workload.devices_per_server, profile.workload.devices_per_rank)
    return settings(
        base,
        limits=args.limits or sorted({0, 1, 2, 4, 8, base.limit}),
        policies=args.policies or ("wait", "drop"),
        steps_per_version=args.steps_per_version or sorted({1, 2, 4, base.steps_per_version}),
        splits=splits,
    )


def _cells(row: "Row", remark: str) -> Sequence[str]:
    setting, found = row.setting, row.prediction
    return (
        str(setting.limit),
        setting.policy,
        str(setting.steps_per_version),
        f"{setting.servers}+{setting.ranks}",
        f"{found.tokens_per_s:,.0f}",
        f"{found.stall_share:.0%}",
        f"{found.lag_mean:.2f}",
        str(found.lag_max),
        f"{found.stale_share:.1%}",
        f"{found.length_bias:+.1%}",
        remark,
    )


def _remark(row: "Row", own: "Setting", choice: "Recommendation") -> str:
    remarks = ["<- recommended"] if row is choice.row else []
    return ", ".join([*remarks, "this run"] if row.setting == own else remarks)


def _keys(setting: "Setting") -> dict[str, object]:
    """The configuration's keys for a setting."""
    return {
        "staleness.limit": setting.limit,
        "staleness.policy": setting.policy,
        "schedule.steps_per_version": setting.steps_per_version,
        "inference.servers": setting.servers,
        "trainer.parallel.fsdp": setting.ranks,
    }


def _to_json(profile: "Profile", rows: "Sequence[Row]", choice: "Recommendation") -> dict[str, Any]:
    """Plain data."""
    return {
        "profile": profile.model_dump(mode="json"),
        "rows": [{**row.setting.model_dump(mode="json"), **asdict(row.prediction)} for row in rows],
        "recommended": {"row": rows.index(choice.row), "keys": _keys(choice.row.setting), "why": choice.why},
    }


def _numbers(least: int) -> Callable[[str], tuple[int, ...]]:
    def numbers(text: str) -> tuple[int, ...]:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
        if min(found) < least:
            raise argparse.ArgumentTypeError(f"{text}: {min(found)} is below {least}")
        return found

    return numbers


def _policies(text: str) -> tuple[Literal["wait", "drop"], ...]:
    known: dict[str, Literal["wait", "drop"]] = {"wait": "wait", "drop": "drop"}
    if unknown := [part for part in text.split(",") if part not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no staleness.policy; give wait, drop or both")
    return tuple(known[part] for part in text.split(","))
