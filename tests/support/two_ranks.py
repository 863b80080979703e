"""Start a module as several ranks of one process group, and read what each of them found."""

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import pytest

from asyncrl.trainer.parallel import OneRank
from tests.support.forkserver import run_modules
from tests.support.ports import reserved_ports
from tests.support.tiny_policy import write_tiny_model


def run_ranks(module: str, world: int, *arguments: str, timeout_s: float = 240.0) -> list[dict]:
    """Run `python -m module ARGUMENTS` as `world` ranks; the JSON object that each one's last line is."""
    with reserved_ports(1) as (port,), TemporaryDirectory() as directory:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
        own = [{**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
        finished = run_modules(module, arguments, own, Path(directory), timeout_s)
    for rank in finished:
        assert rank.code == 0, f"{rank.code} {rank.out}\n{rank.err}"
    return [json.loads(rank.out.splitlines()[-1]) for rank in finished]


def forked_ranks(world: int, run: Callable[[], dict]) -> list[dict]:
    """What `run` gives in each of `world` ranks, which are forks of this process: what it has imported they have, too.

    The process must not have computed anything yet: threads do not come along.
    """
    os.environ |= {"WORLD_SIZE": str(world)}
    pipes = []
    for rank in range(world):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            code = 1
            try:
                with os.fdopen(writer, "w") as pipe:
                    json.dump(run(), pipe)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writer)
        pipes.append(reader)
    texts = [Path(f"/dev/fd/{reader}").read_text() for reader in pipes]
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in pipes]
    assert codes == [0] * world, codes
    return [json.loads(text) for text in texts]


def fixtures_of(module: ModuleType):
    """Fixtures `model_dir`, `one` and `two` of a module whose `train` is what a rank does.

    `one` is what one rank found, and its directory; `two` what each of two ranks found from the beginning and from the
    checkpoint of one, and their directory.
    """

    def model_dir(tmp_path_factory):
        return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")

    def one(model_dir, tmp_path_factory):
        out = tmp_path_factory.mktemp("one")
        return module.train(model_dir, out, OneRank()), out

    def two(model_dir, one, tmp_path_factory):
        out = tmp_path_factory.mktemp("two")
        return run_ranks(module.__name__, 2, str(model_dir), str(out), str(one[1] / "checkpoints")), out

    return tuple(pytest.fixture(scope="module")(made) for made in (model_dir, one, two))


def close(one, other, *, rel):
    """The same metrics with nearly the same values.

    Operations are those of what was read, and ranks that have answers of one group read its prompt each.
    """
    assert one.keys() == other.keys()
    for name, value in one.items():
        expected = pytest.approx(other[name], abs=2e-4, rel=0.5 if name.startswith("perf/flops/") else rel)
        assert value == expected, name
