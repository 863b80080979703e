"""Checks of what is installed: our packages, Python, libraries, the server."""

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
SERVER_DEADLINE_S = 60.0
SERVER_PROBE = (
    "import importlib.metadata as m, importlib.util as u, json, sys;"
    "print(json.dumps({'version': m.version(sys.argv[1]), 'loader': u.find_spec(sys.argv[2]) is not None}))"
)
SERVERS = {
    "sglang": ("SGLang", "sglang", "weightsync.sglang_loader"),
    "vllm": ("vLLM", "vllm", "weightsync.vllm_worker"),
}
"""By inference.engine: the server's name, its distribution, and the module of the weight loader in it."""


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
    # Only servers of another environment work without torch, and then this machine can serve rollouts, not train.
    trainer = _requirements("trainer libraries", "trainer")
    serves_only = config.inference.engine != "local" and importlib.util.find_spec("torch") is None
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


def check_server(config: Config) -> Iterator[Finding]:
    """SGLang or vLLM, and the loader of weights, in the environment that servers run in."""
    engine = config.inference.engine
    if engine == "local" or config.inference.servers == 0:
        return
    name, distribution, loader = SERVERS[engine]
    python = str(config.inference.python or sys.executable)
    fix = f"scripts/setup --{engine} makes such an environment; set inference.python to its python."
    try:
        done = subprocess.run(
            [python, "-c", SERVER_PROBE, distribution, loader],
            capture_output=True,
            text=True,
            timeout=SERVER_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding(name, False, f"{python} cannot be run: {error}", fix)
        return
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield Finding(name, False, f"{python} has no {name}: {reason}", fix)
        return
    found = json.loads(done.stdout)
    yield Finding(name, True, f"{found['version']} at {python}")
    loader_fix = "" if found["loader"] else f"{python} -m pip install --no-deps asyncrl"
    where = f"beside {name}" if found["loader"] else "missing there"
    yield Finding("weight loader", found["loader"], where, loader_fix)
