"""Tool calls as models write them: whole, several, and broken, in each form."""

import json
from collections.abc import Callable, Mapping
from typing import Any

TRICKY: dict[str, Any] = {
    "q": 'a "quoted" </tool_call> <tool_call> [TOOL_CALLS] ] } ; é \u2028 \\',
    "n": -1.5,
    "l": [{"k": None}, True],
}
WRITTEN: Mapping[str, Callable[[str, Mapping[str, Any]], str]] = {
    "hermes": lambda name, arguments: (
        f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    ),
    "qwen": lambda name, arguments: (
        f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'
    ),
    "qwen3_coder": lambda name, arguments: (
        f"<tool_call>\n<function={name}>\n"
        + "".join(
            f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
            for key, value in arguments.items()
        )
        + "</function>\n</tool_call>"
    ),
    "llama3_json": lambda name, arguments: f'{{"name": "{name}", "parameters": {json.dumps(arguments)}}}',
    "mistral": lambda name, arguments: f'[TOOL_CALLS] [{{"name": "{name}", "arguments": {json.dumps(arguments)}}}]',
    "pythonic": lambda name, arguments: (
        f"[{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"
    ),
    "harmony": lambda name, arguments: (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(arguments)}<|call|>"
    ),
}
"""How a model writes one call in each form."""

MANY: Mapping[str, str] = {
    "hermes": f"1 {WRITTEN['hermes']('a', {})} 2 {WRITTEN['hermes']('b', {})} 3",
    "llama3_json": '<|python_tag|>{"name": "a", "parameters": {}}; {"name": "b", "arguments": {}}',
    "mistral": "[TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[CALL_ID]123456789[ARGS]{}",
    "pythonic": "<|python_start|>[a(), b()]<|python_end|>",
    "harmony": "<|channel|>analysis<|message|>to=functions. is how<|end|><|start|>assistant to=functions.a<|channel|>"
    "commentary json<|message|>{}<|call|><|start|>assistant<|channel|>commentary to=functions.b<|message|>{}",
}
"""Turns that call `a` and `b`."""

BROKEN: list[tuple[str, str, list[str]]] = [
    ("hermes", '<tool_call>{"name": "a", "arguments": {}}', ["unclosed"]),
    ("hermes", "<tool_call></tool_call>", ["malformed"]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {}}}</tool_call>', ["malformed"]),
    (
        "hermes",
        '<tool_call>{"name": "a", "arguments": {"x": "1}</tool_call>' + WRITTEN["hermes"]("b", {}),
        ["malformed", "b"],
    ),
    ("hermes", '<tool_call>[{"name": "a", "arguments": {}}]</tool_call>', ["malformed"]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', ["malformed"]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {"x": %s}}</tool_call>' % ("[" * 100_000), ["malformed"]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {"x": %s}}</tool_call>' % ("9" * 10_000), ["malformed"]),
    ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>', ["missing name"]),
    *[
        ("hermes", f'<tool_call>{{"name": "a", "arguments": {value}}}</tool_call>', ["arguments not an object"])
        for value in ("null", "[1]", "5", '"x"', "true", '"{} {}"')  # B141
    ],
    ("qwen3_coder", "<tool_call>\n<function=a>\n<parameter=x>\n1\n</parameter>", ["unclosed"]),
    ("qwen3_coder", "<tool_call>\n<function=a>\nx=1\n</function>\n</tool_call>", ["malformed"]),
    ("qwen3_coder", "<tool_call>\n{}\n</tool_call>" + WRITTEN["qwen3_coder"]("b", {}), ["malformed", "b"]),
    ("qwen3_coder", "<tool_call></function></tool_call>", ["missing name"]),
    ("llama3_json", '{"name": "a", "parameters": {}', ["unclosed"]),
    ("llama3_json", "{\"name\": 'a'}", ["malformed"]),
    ("llama3_json", "<|python_tag|>search.call(query=1)", ["malformed"]),
    ("llama3_json", '<|python_tag|>{"name": "a"}', ["missing arguments"]),
    ("llama3_json", '{"name": "a", "parameters": {}}; {"name": "b"', ["a", "unclosed"]),
    ("llama3_json", "<|python_tag|>", ["malformed"]),
    ("mistral", "[TOOL_CALLS]", ["malformed"]),
    ("mistral", "[TOOL_CALLS][]", ["malformed"]),
    ("mistral", '[TOOL_CALLS][{"name": "a", "arguments": {}}', ["unclosed"]),
    ("mistral", '[TOOL_CALLS][{"name": "a", "arguments": {}}, 3, {}]', ["a", "malformed", "missing name"]),
    ("mistral", "[TOOL_CALLS]a[ARGS]{'x': 1}[TOOL_CALLS]b{}", ["malformed", "b"]),
    ("mistral", '[TOOL_CALLS]a[ARGS]{"x": ', ["unclosed"]),
    ("mistral", "[TOOL_CALLS] I would rather not", ["malformed"]),
    ("harmony", 'to=functions.a<|message|>{"x": ', ["unclosed"]),
    ("harmony", "to=functions.a<|message|>x<|call|>to=functions.b<|message|>{}", ["malformed", "b"]),
    ("harmony", "to=functions.a<|message|>[1]<|call|>", ["arguments not an object"]),
    ("pythonic", "[a(x=1), b(", ["unclosed"]),
    ("pythonic", "[a(1)]", ["malformed"]),
    ("pythonic", "[a(**{'x': 1})]", ["malformed"]),
    ("pythonic", "[a(x=open('f'))]", ["malformed"]),
    ("pythonic", "[a(x=b'1')]", ["malformed"]),
    ("pythonic", "[a(x={1: 2})]", ["malformed"]),
    ("pythonic", "[a(x=1) for a in b]", ["malformed"]),
    ("pythonic", "[a(), b()()]", ["a", "missing name"]),
    ("pythonic", "[a(x=%s)]" % ("[" * 5000), ["malformed"]),
]
"""Parser, text, and what becomes of its calls."""
