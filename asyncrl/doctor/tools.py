"""Check of the tools that rollout.tools names: each is loaded as a worker does it, and closed again."""

import asyncio
from collections.abc import Iterator

from asyncrl.config import Config
from asyncrl.config.tools import ToolsConfig
from asyncrl.doctor.finding import Finding
from asyncrl.envs.tools.catalogue import load_tools
from asyncrl.envs.tools.python.tool import NAME, probe
from asyncrl.errors import AsyncrlError

ISOLATION = (
    "Use a kernel that permits them (user.max_user_namespaces > 0, no AppArmor rule against it), or a container that "
    "may unshare and mount; rollout.tools.python.isolation = required refuses to run otherwise."
)


def check_tools(config: Config) -> Iterator[Finding]:
    """One finding for all tools, and one for how far code of the model is cut off from the machine."""
    tools = config.rollout.tools
    if not (tools.builtin or tools.functions or tools.config_path or tools.mcp_servers):
        return
    try:
        names = asyncio.run(_names(tools))
    except AsyncrlError as error:
        yield Finding("tools", False, str(error), "`asyncrl tools list CONFIG` loads them and nothing else.")
        return
    yield Finding("tools", True, ", ".join(names))
    if NAME in tools.builtin:
        yield asyncio.run(_isolation(tools))


async def _names(tools: ToolsConfig) -> list[str]:
    async with await load_tools(tools) as catalogue:
        return list(catalogue.tools)


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
