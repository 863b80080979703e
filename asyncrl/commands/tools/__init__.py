"""Try the tools of a configuration without a model: list them as the model is shown them, call one."""

ACTIONS = {
    "list": "every tool: its name, kind, where it comes from, and what it takes",
    "call": "call one tool as an episode would, and print what the model would read",
}
"""Action -> what it does. Each is the file of its name beside this one."""
