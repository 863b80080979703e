"""What the source text must keep to: sizes, one place that waits, no pickle from the network, docstrings."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("asyncrl", "buffer", "weightsync")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_LINES = 300
WAITS = "asyncrl/waits.py"
SLEEPS = {"time.sleep", "asyncio.sleep", "sleep", "anyio.sleep"}
UNPICKLES = {"pickle.loads", "pickle.load", "pickle.Unpickler", "cloudpickle.loads", "eval", "exec"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def complaints(name: str, text: str) -> Iterator[str]:
    """What is wrong with a module."""
    if len(text.splitlines()) > MAX_LINES:
        yield f"{len(text.splitlines())} lines: a module has one job and at most {MAX_LINES}"
    tree = ast.parse(text)
    if text.strip() and not ast.get_docstring(tree):
        yield "no docstring: its first line says the module's one job"
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    if name != WAITS and called & SLEEPS:
        yield f"only {WAITS} may sleep: {called & SLEEPS}"
    if called & UNPICKLES:
        yield f"no module unpickles: {called & UNPICKLES}"
    for node in tree.body:
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and ast.get_docstring(node) is None
        ):
            yield f"{node.name} is public and does not say what it does"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_keeps_the_rules(path: Path) -> None:
    assert list(complaints(relative(path), path.read_text())) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('"""A job."""\n' + "\n" * MAX_LINES, "at most 300"),
        ("x = 1\n", "no docstring"),
        ('"""A job."""\nimport time\n\n\ndef _wait():\n    time.sleep(1)\n', "may sleep"),
        ('"""A job."""\nimport pickle\n\n_load = lambda file: pickle.load(file)\n', "unpickles"),
        ('"""A job."""\n\n\nclass Silent:\n    pass\n', "Silent is public"),
    ],
)
def test_each_rule_finds_what_breaks_it(text: str, complaint: str) -> None:
    (found,) = complaints("asyncrl/module.py", text)
    assert complaint in found
    assert (list(complaints(WAITS, text)) == []) == (complaint == "may sleep")


@pytest.mark.parametrize("path", sorted((ROOT / "buffer" / "lua").rglob("*.lua")), ids=relative)
def test_a_script_starts_with_its_flags_and_says_what_it_does(path: Path) -> None:
    lines = path.read_text().splitlines()
    is_shared = path.parent.name == "shared"  # put before the scripts that use it, behind their flags
    assert is_shared != lines[0].startswith("#!lua")
    assert any(line.startswith("-- ") for line in lines[:2])
    assert len(lines) <= MAX_LINES
