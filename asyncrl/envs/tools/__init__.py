"""Tools that a model can call in its turn.

base       what a tool is                          parsers/   calls in a model's text, in the forms of model families
catalogue  all tools of a configuration, by name   running    the calls of a turn, within their limits
calculator, python/, builtin      tools that come along
functions (parameters, docstrings, threads), verl/, mcp/      tools of your own, by kind: see docs/tools.md
instances, calls      what an episode has of each tool, and what became of its calls
"""
