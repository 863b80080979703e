"""asyncrl tools: what it lists and calls, without a model and without Redis."""

import json
from pathlib import Path

import pytest

from asyncrl import cli

TINY = Path(__file__).resolve().parents[2] / "configs" / "tiny_cpu.yaml"


@pytest.fixture
def keys(tmp_path: Path) -> list[str]:
    """Overrides that name two tools."""
    file = tmp_path / "own.py"
    file.write_text(
        "from asyncrl.envs.tools.base import ToolAnswer, ToolError\n\n\n"
        'def grade(answer: int) -> ToolAnswer:\n    """Grade it.\n\n    Args:\n        answer: a number\n    """\n'
        "    if answer < 0:\n        raise ToolError('negative')\n"
        "    return ToolAnswer(f'got {answer}', reward=0.5, metrics={'n': 1.0})\n"
    )
    return [f'rollout.tools.functions=["{file}:grade"]', "rollout.tools.builtin=[calc]"]


def test_list_shows_what_a_model_is_shown(keys: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tools", "list", str(TINY), *keys]) == 0
    shown = capsys.readouterr().out
    assert "grade     function, from " in shown
    assert '"description": "a number"' in shown
    assert cli.main(["tools", "list", str(TINY), *keys, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(entry["name"], entry["kind"]) for entry in found] == [("calc", "builtin"), ("grade", "function")]
    assert found[1]["schema"]["function"]["parameters"]["required"] == ["answer"]
    assert cli.main(["tools", "list", str(TINY)]) == 0
    assert "names no tools" in capsys.readouterr().out


def test_call_answers_as_the_model_would_read_it(keys: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tools", "call", str(TINY), "grade", *keys, "--arguments", '{"answer": 3}']) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("got 3\n", "reward: 0.5\n")
    assert cli.main(["tools", "call", str(TINY), "grade", *keys, "--arguments", '{"answer": 3}', "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"outcome": "ok", "text": "got 3", "reward": 0.5, "metrics": {"n": 1.0}, "calc_reward": None}


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "text"),
    [
        ("grade", '{"answer": -1}', 1, "error: negative"),
        ("grade", "{}", 1, "error: wrong arguments: answer is missing"),
        ("nothing", "{}", 1, "error: unknown tool. There is: calc, grade."),
        ("calc", "{", 2, "--arguments is not JSON"),
        ("calc", "[]", 2, "--arguments must be a JSON object"),
    ],
)
def test_a_call_that_fails_has_its_exit_code(
    keys: list[str], capsys: pytest.CaptureFixture[str], tool: str, arguments: str, code: int, text: str
) -> None:
    assert cli.main(["tools", "call", str(TINY), tool, *keys, "--arguments", arguments]) == code
    shown = capsys.readouterr()
    assert text in shown.out + shown.err
