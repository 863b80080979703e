"""The tools of MCP servers as tools."""

import json
import logging
from collections.abc import Mapping, Sequence

from mcp import MCPError
from mcp.types import CallToolResult, ContentBlock, TextContent
from mcp.types import Tool as McpToolListing

from asyncrl.data.values import Json
from asyncrl.envs.tools.base import ToolAnswer
from asyncrl.envs.tools.mcp.pool import McpPool, Unreachable
from asyncrl.envs.tools.mcp.session import SessionEnded
from asyncrl.envs.tools.mcp.spec import McpServerSpec
from asyncrl.errors import ConfigError, PreflightError

log = logging.getLogger(__name__)


class McpTool:
    """A tool of a server. What the server keeps between calls is its own: sessions belong to no episode."""

    keeps_state = False

    def __init__(self, listing: McpToolListing, pool: McpPool) -> None:
        self.name, self._pool = listing.name, pool
        self.schema: Mapping[str, Json] = {
            "type": "function",
            "function": {
                "name": listing.name,
                "description": listing.description or listing.title or listing.name,
                "parameters": dict(listing.input_schema),
            },
        }

    async def create(self, instance_id: str, **kwargs: Json) -> None:
        """Nothing to make."""

    async def execute(self, instance_id: str, arguments: Mapping[str, Json]) -> ToolAnswer:
        """Call it. Raises ToolError if the server is gone, or refuses."""
        return answer_of(await self._pool.call(self.name, arguments))

    async def calc_reward(self, instance_id: str) -> None:
        """It has no opinion."""

    async def release(self, instance_id: str) -> None:
        """Nothing to drop."""


def answer_of(result: CallToolResult) -> ToolAnswer:
    """What the model reads of a result: its texts, one below the other; of anything else, that it was there."""
    text = "\n".join(_text(part) for part in result.content)
    if not result.content and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    return ToolAnswer(text, is_error=bool(result.is_error))


async def load_server(spec: McpServerSpec) -> tuple[McpPool, Sequence[McpTool]]:
    """Ask a server for its tools. The pool is the caller's to close.

    Raises:
        PreflightError: it cannot be reached, or has no tools.
        ConfigError: it does not have one of spec.tools.
    """
    pool = McpPool(spec)
    try:
        listed = await pool.tools()
        if missing := [name for name in spec.tools if name not in {tool.name for tool in listed}]:
            raise ConfigError(
                f"MCP server {spec.name!r} has no tool {', '.join(missing)}. It has: "
                f"{', '.join(tool.name for tool in listed) or 'none'}."
            )
    except (Unreachable, SessionEnded, MCPError) as error:
        await pool.close()
        raise PreflightError(
            f"MCP server {spec.name!r} ({spec.place}) gives no list of its tools: {error}. Try its command or url by "
            "hand; what a started program writes to its standard error is above."
        ) from None
    except BaseException:
        await pool.close()
        raise
    chosen = [tool for tool in listed if not spec.tools or tool.name in spec.tools]
    log.info("MCP server %s offers %s", spec.name, ", ".join(tool.name for tool in chosen) or "nothing")
    return pool, [McpTool(tool, pool) for tool in chosen]


def _text(part: ContentBlock) -> str:
    if isinstance(part, TextContent):
        return part.text
    resource = getattr(part, "resource", None)
    text = getattr(resource, "text", None)
    if isinstance(text, str):
        return text
    kind = getattr(part, "mime_type", None) or getattr(resource, "mime_type", None) or part.type
    return f"[{kind}: not shown]"
