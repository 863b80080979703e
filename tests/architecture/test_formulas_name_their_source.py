"""Every formula of the algorithms says where it is from."""

import ast
import re
from pathlib import Path

import pytest

from asyncrl.algorithms import ALGORITHMS

MODULES = sorted((Path(__file__).resolve().parents[2] / "asyncrl" / "algorithms").glob("*.py"))

_TENSORS = re.compile(r"\b(Tensor|TokenLoss|PairLoss|TopkForwardKL|Correction)\b")
_SOURCE = re.compile(r"Source: (.*)", re.DOTALL)
_REFERENCE = re.compile(r"arXiv:\d{4}\.\d{4,5}|\b(19|20)\d\d\b|verl 0\.\d")

PLUMBING = {
    # Shapes, masks and sums, no formula of their own.
    *("row_scores", "token_rewards", "spread", "relative_scores", "count", "alone", "largest", "prepare"),
    *("upcast", "inside", "clamped", "row_lengths", "row_means", "mean_pair", "outermost", "mean_weight_of"),
    # A log-softmax and a difference of sums.
    *("token_logprobs", "log_ratios"),
    # Parts whose formulas are cited where they are put together from.
    *("policy_objective", "pairs_of", "measure_pairs", "measure_self_play"),
}


def functions(path: Path) -> list[ast.FunctionDef]:
    """Public functions that take or give tensors."""
    return [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and _TENSORS.search(f"{ast.unparse(node.args)} {ast.unparse(node.returns) if node.returns else ''}")
    ]


def cites(docstring: str | None) -> bool:
    found = _SOURCE.search(docstring or "")
    return found is not None and _REFERENCE.search(found[1]) is not None


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_every_public_function_on_tensors_cites_a_paper_or_the_code_it_follows(path: Path) -> None:
    silent = [node.name for node in functions(path) if node.name not in PLUMBING and not cites(ast.get_docstring(node))]
    assert silent == [], "end the docstring with 'Source: arXiv:<number>, <section or equation>.'"


def test_what_is_excused_exists_and_cites_nothing() -> None:
    """A name that is left in the list when its function is gone, or has got a source, excuses the next of that name."""
    found = {node.name: cites(ast.get_docstring(node)) for path in MODULES for node in functions(path)}
    assert {name for name in PLUMBING if found.get(name) is not False} == set()


def test_every_row_of_the_table_cites_its_source() -> None:
    assert [name for name, row in ALGORITHMS.items() if not _REFERENCE.search(row.source)] == []
