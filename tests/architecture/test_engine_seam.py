"""Only an engine's own files know how a model is split and run; what is above the seam asks asyncrl.trainer.engine."""

import ast

from asyncrl.trainer.engine import ENGINES
from tests.architecture.test_source import ROOT

BELOW = {"fsdp2": {"fsdp2", "model", "value_model", "sharding", "tensor_parallel", "sliced_layers", "vocabulary"}}
"""Engine -> files of asyncrl/trainer that are its own."""


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def test_every_engine_has_its_files():
    assert ENGINES.keys() == BELOW.keys()
    assert {name: module.rpartition(".")[2] in BELOW[name] for name, module in ENGINES.items()} == {"fsdp2": True}


def test_nothing_above_the_seam_imports_an_engine():
    own = {f"asyncrl.trainer.{name}": engine for engine, names in BELOW.items() for name in names}
    for path in sorted((ROOT / "asyncrl").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        reached = {own[name] for name in imports(path) if name in own}
        assert reached <= {own.get(module)}, f"{module} imports files of the engine {reached}"


def test_one_file_knows_fsdp_and_two_the_split_of_products():
    found = {"torch.distributed.fsdp": set(), "torch.distributed.tensor.parallel": set()}
    for path in (ROOT / "asyncrl").rglob("*.py"):
        for name in imports(path):
            for door, files in found.items():
                if name == door or name.startswith(f"{door}."):
                    files.add(path.name)
    assert found == {
        "torch.distributed.fsdp": {"sharding.py"},
        "torch.distributed.tensor.parallel": {"tensor_parallel.py", "sliced_layers.py"},
    }
