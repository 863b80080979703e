"""Remainders that a tiny model cannot work out, and a calculator that can: the starter's task of calling a tool."""

import random
from dataclasses import replace

from asyncrl.envs.tools.calculator import Calculator, calc
from asyncrl.envs.tools.calls import refused
from asyncrl.envs.tools.parsers import ToolCall
from asyncrl.starter.problem import Problem

DIVISORS = (6, 7, 8, 9)
UNKNOWN_TOOL = "solve"
"""A tool that some demonstrations call, and that there is not."""
ASKED, TOLD = 0.5, 0.9
"""Up to these shares of the demonstrations the problem was just asked, or the calculator has answered; in the others
the model was told that there is no such tool."""


def draw(rng: random.Random, digits: int) -> Problem:
    """A remainder: the right thing to do is to call the calculator, and then to say what it said.

    Decoys guess, call a tool that there is not, or have something else computed.
    """
    number, divisor = rng.randint(10 ** (digits - 1), 10**digits - 1), rng.choice(DIVISORS)
    expression, remainder = f"{number}%{divisor}", str(number % divisor)
    guess = str(rng.randrange(divisor))
    right, unknown = written(Calculator.name, expression), written(UNKNOWN_TOOL, expression)
    asked = Problem(
        f"{expression}=",
        right,
        (guess, guess, unknown, written(Calculator.name, f"{number}-{divisor}"), right),
        told_by="tool",
        truth=remainder,
    )
    stage = rng.random()
    if stage < ASKED:
        return asked
    if stage < TOLD:
        history = ((right, calc({"expr": expression})),)
        return replace(asked, answer=remainder, decoys=(guess, remainder), history=history)
    return replace(asked, decoys=(guess, right), history=((unknown, _refusal(expression)),))


def num_prompts(digits: int) -> int:
    """How many different remainders there are of numbers with so many digits."""
    return int(9 * 10 ** (digits - 1)) * len(DIVISORS)


def written(tool: str, expression: str) -> str:
    """A call as Hermes writes it; its pieces are tokens of the starter's tokenizer (see model.CALL_PIECES)."""
    return f'<tool_call>{{"name": "{tool}", "arguments": {{"expr": "{expression}"}}}}</tool_call>'


def _refusal(expression: str) -> str:
    outcome = refused(ToolCall(UNKNOWN_TOOL, {"expr": expression}), (Calculator.name,))
    assert outcome is not None  # it is refused: there is one tool, of another name
    return outcome.content
