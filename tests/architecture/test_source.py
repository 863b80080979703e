"""What the source text must keep to: sizes, one place that waits, no pickle from the network, docstrings."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("asyncrl", "buffer", "weightsync")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_LINES = 300


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def calls(tree: ast.AST) -> set[str]:
    """Dotted names that are called, as they are written."""
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_has_one_job_and_at_most_300_lines(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), "the first docstring line says the module's one job"


@pytest.mark.parametrize("path", sorted((ROOT / "buffer" / "lua").rglob("*.lua")), ids=relative)
def test_a_script_starts_with_its_flags_and_says_what_it_does(path: Path) -> None:
    lines = path.read_text().splitlines()
    is_shared = path.parent.name == "shared"  # put before the scripts that use it, behind their flags
    assert is_shared != lines[0].startswith("#!lua")
    assert any(line.startswith("-- ") for line in lines[:2])
    assert len(lines) <= MAX_LINES


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_only_waits_may_sleep(path: Path) -> None:
    if relative(path) == "asyncrl/waits.py":
        return
    assert not calls(ast.parse(path.read_text())) & {"time.sleep", "asyncio.sleep", "sleep", "anyio.sleep"}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_no_module_unpickles(path: Path) -> None:
    used = calls(ast.parse(path.read_text()))
    assert not used & {"pickle.loads", "pickle.load", "pickle.Unpickler", "cloudpickle.loads", "eval", "exec"}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_every_public_function_and_class_says_what_it_does(path: Path) -> None:
    tree = ast.parse(path.read_text())
    silent = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
    ]
    assert silent == []
