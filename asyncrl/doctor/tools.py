"""Check of the tools that rollout.tools names: each is loaded as a worker does it, and closed again."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from asyncrl.config import Config
from asyncrl.config.tools import ToolsConfig
from asyncrl.data.dataset import Scan
from asyncrl.data.values import Json
from asyncrl.doctor.finding import Finding
from asyncrl.envs.lookup import find_environment
from asyncrl.envs.tools.catalogue import load_tools
from asyncrl.envs.tools.python.tool import NAME, probe
from asyncrl.errors import AsyncrlError
from asyncrl.rollout.chat import ChatTemplate

ISOLATION = (
    "Use a kernel that permits them (user.max_user_namespaces > 0, no AppArmor rule against it), or a container that "
    "may unshare and mount; rollout.tools.python.isolation = required refuses to run otherwise."
)


def check_tools(config: Config) -> Iterator[Finding]:
    """One finding for all tools, one for prompts that are too long with them, and one for how far code of the model is
    cut off from the machine."""
    tools = config.rollout.tools
    if not (tools.builtin or tools.functions or tools.config_path or tools.mcp_servers):
        return
    try:
        schemas = asyncio.run(_schemas(tools))
    except AsyncrlError as error:
        yield Finding("tools", False, str(error), "`asyncrl tools list CONFIG` loads them and nothing else.")
        return
    yield Finding("tools", True, ", ".join(schemas))
    yield from _lengths(config, tuple(schemas.values()))
    if NAME in tools.builtin:
        yield asyncio.run(_isolation(tools))


async def _schemas(tools: ToolsConfig) -> dict[str, Mapping[str, Json]]:
    async with await load_tools(tools) as catalogue:
        return {name: tool.schema for name, tool in catalogue.tools.items()}


def _lengths(config: Config, schemas: Sequence[Mapping[str, Json]]) -> Iterator[Finding]:
    """Prompts that fit without the tools only."""
    try:
        shows_them = getattr(find_environment(config.rollout.environment), "takes_tools", False)
        chat = ChatTemplate.from_model_dir(config.model.path)
    except AsyncrlError:
        return  # the checks of the environment and of the model say it
    scan = Scan(config.data, chat, schemas)
    for path in (*config.data.training_files, *config.data.val_files) if shows_them else ():
        scan.add(path)
    problems = [file.error_text() for file in scan.report().files if file.is_fatal]
    if problems:
        yield Finding("prompts with tools", False, "\n".join(problems), "Raise data.max_prompt_tokens.")


async def _isolation(tools: ToolsConfig) -> Finding:
    found = await probe(tools.python)
    if found.isolated:
        return Finding(
            "tool python", True, "namespaces hide network, files and processes of this machine from the code"
        )
    return Finding(
        "tool python",
        True,
        f"namespaces are not permitted ({found.why}): the code is held to its limits only, and can reach the network "
        "and whatever files its user can",
        ISOLATION,
    )
