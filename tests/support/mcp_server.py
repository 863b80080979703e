"""A real MCP server whose tools do what a test asks: python -m tests.support.mcp_server stdio | http PORT.

Over HTTP it prints its port when it listens; 0 lets the system choose.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

ROOT = Path(__file__).resolve().parents[2]
server = MCPServer("for tests", log_level="ERROR")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def environment(name: str) -> str:
    """A variable of the server's environment, and its process."""
    return f"{os.environ.get(name)} {os.getpid()}"


@server.tool()
def fail() -> str:
    """Raise."""
    raise ToolError("it went wrong")


@server.tool()
def die() -> str:
    """End the server's process at once."""
    os._exit(7)


@server.tool(structured_output=False)
def picture() -> list[object]:
    """A text and an image."""
    return ["below is a picture", Image(data=b"pixels", format="png")]


@server.tool()
async def hang(port: int) -> str:
    """Connect to a port of this machine, and go on while the connection lasts."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await reader.read()
    finally:
        writer.close()
    return "the connection ended"


def main(arguments: list[str]) -> None:
    """Serve until the end."""
    if arguments[0] == "stdio":
        server.run("stdio")
        return
    with socket.create_server(("127.0.0.1", int(arguments[1]))) as listening:
        print(listening.getsockname()[1], flush=True)
        config = uvicorn.Config(server.streamable_http_app(), log_level="error")
        uvicorn.Server(config).run(sockets=[listening])


STDIO = (sys.executable, "-m", "tests.support.mcp_server", "stdio")


class HttpServer:
    """The process of one, at a port that it keeps when it is started again."""

    def __init__(self) -> None:
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.support.mcp_server", "http", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def restart(self) -> None:
        self.kill()
        self.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def http_server() -> Iterator[HttpServer]:
    """A started one, killed at the end."""
    found = HttpServer()
    try:
        yield found
    finally:
        found.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
