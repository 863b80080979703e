"""A calculator: exact arithmetic on an expression, without running anybody's code."""

import ast
from collections.abc import Callable, Mapping
from fractions import Fraction

from asyncrl.data.answers import canonical
from asyncrl.data.values import Json
from asyncrl.envs.tools.base import ToolAnswer, ToolError

MAX_CHARS = 200
MAX_DIGITS = 200  # of any intermediate result: 9**9**9 must not cost the worker its memory

_OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: lambda a, b: a % b,
}


def calc(arguments: Mapping[str, Json]) -> str:
    """The value of `expr`: numbers, + - * / // % ** and brackets. Raises ToolError saying what is wrong."""
    expression = arguments.get("expr")
    if not isinstance(expression, str) or not 0 < len(expression) <= MAX_CHARS:
        raise ToolError(f"expr must be text of 1 to {MAX_CHARS} characters")
    try:
        return canonical(_value(ast.parse(expression.strip(), mode="eval").body))
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError(
            str(error) if isinstance(error, ToolError) else "expr is not an arithmetic expression"
        ) from None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return _bounded(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return -_value(node.operand) if isinstance(node.op, ast.USub) else _value(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _OPERATORS:
            return _bounded(_OPERATORS[type(node.op)](left, right))
    raise ToolError("expr may hold numbers, + - * / // % ** and brackets only")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    size = max(abs(base.numerator), base.denominator).bit_length()
    if exponent.denominator != 1 or size * abs(exponent.numerator) > MAX_DIGITS * 4:
        raise ToolError("the exponent must be whole and the result short")
    return Fraction(base ** int(exponent))


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator).bit_length() > MAX_DIGITS * 4:
        raise ToolError(f"the result has more than {MAX_DIGITS} digits")
    return value


class Calculator:
    """The tool `calc`. It keeps nothing, so its instances are none."""

    name = "calc"
    keeps_state = False
    schema: Mapping[str, Json] = {
        "type": "function",
        "function": {
            "name": "calc",
            "description": "Exact value of an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {
                    "expr": {"type": "string", "description": "Numbers, + - * / // % ** and brackets."},
                },
                "required": ["expr"],
            },
        },
    }

    async def create(self, instance_id: str, **kwargs: Json) -> None:
        """Nothing to make."""

    async def execute(self, instance_id: str, arguments: Mapping[str, Json]) -> ToolAnswer:
        """See calc."""
        return ToolAnswer(calc(arguments))

    async def calc_reward(self, instance_id: str) -> float | None:
        """Using it is worth nothing."""
        return None

    async def release(self, instance_id: str) -> None:
        """Nothing to drop."""
