"""Templates and facts -> the text of the files."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import jinja2
from pydantic import ValidationError

from asyncrl import __version__
from asyncrl.errors import ConfigError
from asyncrl.launch.job import job_of
from asyncrl.launch.target import NodeSettings, Target
from asyncrl.load_config import Key, LoadedConfig, describe
from asyncrl.load_config.overrides import parse

CONFIG = "run.yaml"
MADE = f"Made by `asyncrl launch` {__version__}; make it again instead of changing it."


def render(target: Target, loaded: LoadedConfig, given: Sequence[str] = ()) -> dict[str, str]:
    """Name -> text of every file.

    Args:
        given: NAME=VALUE, the target's settings.
    Raises:
        ConfigError: a setting is unknown, wrong or missing, or the configuration cannot run on other machines.
    """
    settings = settings_of(target, given)
    job = job_of(loaded, devices_per_node=settings.devices_per_node, network=settings.network)
    template_name, file_name = target.side_file
    template = _environment().get_template(template_name)
    files = {
        file_name.format(side=side.name): template.render(
            job=job, side=side, settings=settings, made=MADE, **target.facts(job, side, settings)
        )
        for side in job.sides
    }
    return {CONFIG: f"# {MADE}\n{job.config}", **files} if target.with_config else files


def settings_of(target: Target, given: Sequence[str]) -> NodeSettings:
    """The settings of a target. Raises ConfigError: names what is wrong and what there is."""
    values = parse(given)
    problems = [problem.text for problem in values.problems]
    try:
        settings = target.settings.model_validate_json(json.dumps(dict(values.values)))
    except ValidationError as error:
        problems += [f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors()]
    if problems:
        known = "\n".join(
            f"  {key.name} ({key.type}, default {key.default}): {key.description}" for key in keys(target)
        )
        raise ConfigError(f"--set for {target.name}: {'; '.join(problems)}. There are:\n{known}")
    return settings


def keys(target: Target) -> list[Key]:
    """The settings of a target with their meaning."""
    return describe(target.settings)


def kubernetes_name(text: str) -> str:
    """`text` as a name that Kubernetes takes: at most 40 lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "asyncrl"


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,  # a fact that is missing is an error, not an empty place
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # YAML and shell; values are quoted by the filters below
    )
    environment.filters["yaml"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    environment.filters["k8s"] = kubernetes_name
    return environment
