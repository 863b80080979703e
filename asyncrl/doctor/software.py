"""Checks of what is installed: our packages, Python, libraries, SGLang."""

import importlib
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator

from asyncrl.config import Config
from asyncrl.doctor.finding import Finding

OURS = ("asyncrl", "buffer", "weightsync")
SGLANG_DEADLINE_S = 60.0
SGLANG_PROBE = (
    "import importlib.metadata as m, importlib.util as u, json;"
    "print(json.dumps({'sglang': m.version('sglang'), 'loader': u.find_spec('weightsync.sglang_loader') is not None}))"
)


def check_packages(_: Config) -> Iterator[Finding]:
    """Another distribution called `buffer` writes into the same directory as ours, and pip says nothing."""
    owners = importlib.metadata.packages_distributions()
    for name in OURS:
        mark = getattr(importlib.import_module(name), "OWNER", None)
        others = set(owners.get(name, ())) - {"asyncrl"}
        ok = mark == "asyncrl" and not others
        detail = "ours" if ok else f"OWNER is {mark!r}; it also belongs to {', '.join(sorted(others)) or 'nobody else'}"
        fix = "" if ok else f"pip uninstall {' '.join(sorted(others)) or name}; then install asyncrl again."
        yield Finding(f"package {name}", ok, detail, fix)


def check_versions(config: Config) -> Iterator[Finding]:
    """Python and the libraries, against what asyncrl's own metadata asks for."""
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding(
        "Python", sys.version_info >= (3, 11), python, "" if sys.version_info >= (3, 11) else "Use 3.11 or newer."
    )
    yield _requirements("libraries", "")
    # Only SGLang's servers work without torch, and then this machine can serve rollouts, not train.
    trainer = _requirements("trainer libraries", "trainer")
    serves_only = config.inference.engine == "sglang" and importlib.util.find_spec("torch") is None
    if serves_only and not trainer.ok:
        trainer = Finding(trainer.name, True, f"{trainer.detail}; enough for serve-rollout", trainer.fix)
    yield trainer
    if config.lora.rank > 0:
        yield _requirements("adapter libraries", "lora")


def _requirements(name: str, extra: str) -> Finding:
    """The installed versions of a set of asyncrl's requirements."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return Finding(
            name, True, "versions were not compared: the package `packaging` is missing", "pip install packaging"
        )
    wrong, count = [], 0
    for text in importlib.metadata.requires("asyncrl") or []:
        need = Requirement(text)
        wanted = (
            need.marker is None if extra == "" else need.marker is not None and need.marker.evaluate({"extra": extra})
        )
        if not wanted:
            continue
        count += 1
        try:
            found = importlib.metadata.version(need.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{need.name} is missing (needs {need.specifier})")
            continue
        if not need.specifier.contains(found, prereleases=True):
            wrong.append(f"{need.name} is {found} (needs {need.specifier})")
    package = f"asyncrl[{extra}]" if extra else "asyncrl"
    return Finding(
        name, not wrong, "; ".join(wrong) or f"{count} as required", f"pip install '{package}'" if wrong else ""
    )


def check_sglang(config: Config) -> Iterator[Finding]:
    """SGLang and the loader of weights in the environment that servers run in."""
    if config.inference.engine != "sglang" or config.inference.servers == 0:
        return
    python = str(config.inference.python or sys.executable)
    fix = "scripts/setup --sglang makes such an environment; set inference.python to its python."
    try:
        done = subprocess.run(
            [python, "-c", SGLANG_PROBE], capture_output=True, text=True, timeout=SGLANG_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("SGLang", False, f"{python} cannot be run: {error}", fix)
        return
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield Finding("SGLang", False, f"{python} has no SGLang: {reason}", fix)
        return
    found = json.loads(done.stdout)
    yield Finding("SGLang", True, f"{found['sglang']} at {python}")
    loader_fix = "" if found["loader"] else f"{python} -m pip install --no-deps asyncrl"
    yield Finding("weight loader", found["loader"], "beside SGLang" if found["loader"] else "missing there", loader_fix)
