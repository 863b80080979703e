"""Tools of real MCP servers, over standard streams and over HTTP: calls, errors, deaths, deadlines, what is left."""

import asyncio
import importlib.util
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from asyncrl.config.tools import McpServerConfig, ToolsConfig
from asyncrl.envs.tools.base import ToolAnswer, ToolError
from asyncrl.envs.tools.catalogue import load_tools
from asyncrl.envs.tools.mcp.spec import McpServerSpec, spec_of
from asyncrl.envs.tools.verl.config_file import read_servers
from asyncrl.errors import ConfigError, PreflightError

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mcp") is None, reason="the extra asyncrl[mcp] is missing")

if importlib.util.find_spec("mcp") is not None:
    from asyncrl.envs.tools.mcp.pool import McpPool
    from asyncrl.envs.tools.mcp.tool import McpTool, load_server
    from tests.support.mcp_server import ROOT, STDIO, HttpServer, http_server

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server's module is found."""
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def shared() -> Iterator["HttpServer"]:
    with http_server() as server:
        yield server


@pytest.fixture(params=["stdio", "http"])
def spec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> McpServerSpec:
    if request.param == "http":
        return McpServerSpec("h", url=request.getfixturevalue("shared").url, sessions=2)
    monkeypatch.setenv("SECRET", "of the worker")
    monkeypatch.setenv("GIVEN", "for it")
    return spec_of(McpServerConfig(name="s", command=STDIO, pass_env=("GIVEN",), sessions=1))


def used(spec: McpServerSpec, use: Callable[["McpPool", dict[str, "McpTool"]], Awaitable[T]]) -> T:
    """Load a server's tools, use them, close; nothing of it goes on afterwards."""

    async def run() -> T:
        pool, tools = await load_server(spec)
        try:
            return await use(pool, {tool.name: tool for tool in tools})
        finally:
            await pool.close()
            assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    return asyncio.run(run())


def test_a_server_gives_its_tools_with_schemas_and_answers_calls(spec: McpServerSpec) -> None:
    """What a tool raises and wrong arguments are answers too, and end no session."""

    async def use(pool: "McpPool", tools: dict[str, "McpTool"]) -> None:
        function = tools["add"].schema["function"]
        assert isinstance(function, dict)
        assert function["description"] == "Add two numbers."
        parameters = function["parameters"]
        assert isinstance(parameters, dict)
        assert parameters["required"] == ["a", "b"]
        answers = await asyncio.gather(*(tools["add"].execute("i", {"a": n, "b": 1}) for n in range(6)))
        assert answers == [ToolAnswer(str(n + 1)) for n in range(6)]
        failed = await tools["fail"].execute("i", {})
        assert failed.is_error
        assert "it went wrong" in failed.text
        assert (await tools["add"].execute("i", {"a": "many"})).is_error
        picture = await tools["picture"].execute("i", {})
        assert picture == ToolAnswer("below is a picture\n[image/png: not shown]")
        assert len(pool._all) <= spec.sessions

    used(spec, use)


def test_a_program_that_dies_is_told_and_started_again_and_gone_in_the_end(spec: McpServerSpec) -> None:
    """In a call, between calls, and when a call is cancelled; it has no variables but those that it was given."""
    if spec.url is not None:
        pytest.skip("of programs")

    async def use(pool: "McpPool", tools: dict[str, "McpTool"]) -> list[int]:
        async def environment(name: str) -> tuple[str, int]:
            said, _, pid = (await tools["environment"].execute("i", {"name": name})).text.rpartition(" ")
            return said, int(pid)

        pids = [(await environment("GIVEN"))[1]]
        assert await environment("GIVEN") == ("for it", pids[0])
        assert await environment("SECRET") == ("None", pids[0])
        with pytest.raises(ToolError, match="went away, and may or may not have done"):
            await tools["die"].execute("i", {})
        pids.append((await environment("GIVEN"))[1])
        os.kill(pids[1], signal.SIGKILL)
        try:  # whether the next call is told depends on who sees the death first
            pids.append((await environment("GIVEN"))[1])
        except ToolError:
            pids.append((await environment("GIVEN"))[1])
        await cancelled_while_it_runs(tools["hang"])
        pids.append((await environment("GIVEN"))[1])
        return pids

    pids = used(spec, use)
    assert len(set(pids)) == 4
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def cancelled_while_it_runs(hang: "McpTool") -> None:
    """Cancel a call when the tool has begun, and wait until the tool has stopped."""
    connected: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()
    async with await asyncio.start_server(lambda reader, _: connected.put_nowait(reader), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        call = asyncio.create_task(hang.execute("i", {"port": port}))
        reader = await connected.get()
        call.cancel()
        assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], asyncio.CancelledError)
        assert await reader.read() == b""


def test_a_call_that_is_cancelled_ends_at_the_server_and_frees_its_place(shared: "HttpServer") -> None:
    """B144: a stuck tool blocks nobody."""

    async def use(pool: "McpPool", tools: dict[str, "McpTool"]) -> None:
        for _ in range(3):
            await cancelled_while_it_runs(tools["hang"])
        assert (await tools["add"].execute("i", {"a": 1, "b": 1})).text == "2"

    used(McpServerSpec("h", url=shared.url, sessions=1), use)


def test_a_call_that_goes_on_when_the_worker_stops_is_ended(shared: "HttpServer") -> None:
    async def use(pool: "McpPool", tools: dict[str, "McpTool"]) -> None:
        connected: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()
        async with await asyncio.start_server(lambda reader, _: connected.put_nowait(reader), "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            call = asyncio.create_task(tools["hang"].execute("i", {"port": port}))
            await connected.get()
            await pool.close()
            with pytest.raises(ToolError, match="went away"):
                await call
            with pytest.raises(ToolError, match="its sessions are closed with the worker"):
                await tools["add"].execute("i", {"a": 1, "b": 1})

    used(McpServerSpec("h", url=shared.url), use)


def test_a_server_that_is_down_is_tried_some_times_then_shut_then_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.envs.tools.mcp.pool.FIRST_SHUT_S", 600.0)
    with http_server() as server:
        spec = McpServerSpec("h", url=server.url, sessions=1, connect_attempts=2)

        async def use(pool: "McpPool", tools: dict[str, "McpTool"]) -> None:
            add = tools["add"]
            await asyncio.to_thread(server.restart)
            # The new process does not know the session; it did nothing, so the call is made again.
            assert (await add.execute("i", {"a": 1, "b": 1})).text == "2"
            server.kill()
            with pytest.raises(ToolError, match=r"went away|cannot be reached|with an error"):
                await add.execute("i", {"a": 1, "b": 1})
            with pytest.raises(ToolError, match="cannot be reached: 2 attempts failed, the last with ConnectError"):
                await add.execute("i", {"a": 1, "b": 1})
            await asyncio.to_thread(server.start)
            with pytest.raises(ToolError, match=r"it is tried again in [56]\d\d s"):  # without asking the server
                await add.execute("i", {"a": 1, "b": 1})
            pool._shut_until = 0.0  # as time does
            assert (await add.execute("i", {"a": 1, "b": 1})).text == "2"

        used(spec, use)


def test_what_is_wrong_with_a_server_is_said_at_the_start(shared: "HttpServer") -> None:
    with pytest.raises(ConfigError, match=r"has no tool subtract\. It has: add, environment"):
        asyncio.run(load_server(McpServerSpec("h", url=shared.url, tools=("add", "subtract"))))
    with pytest.raises(ConfigError, match="the environment variable NOT_SET is not set"):
        spec_of(McpServerConfig(name="s", command=("x",), pass_env=("NOT_SET",)))


@pytest.mark.parametrize(
    "given",
    [{}, {"command": ("x",), "url": "http://h"}, {"command": ("x",), "token_env": "T"},
     {"url": "http://h", "pass_env": ("X",)}],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="MCP server 's'"):
        McpServerConfig(name="s", **given)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"command": ("/no/such/program",)}, "No such file"),
        ({"command": ("/bin/true",)}, "gives no list"),
        ({"command": ("/bin/sleep", "60"), "start_timeout_s": 0.2}, r"no answer within 0\.2 s"),
        ({"url": "http://127.0.0.1:9/mcp"}, "gives no list"),
    ],
)
def test_a_server_that_is_none_is_refused_with_its_place(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(PreflightError, match=why):
        asyncio.run(load_server(McpServerSpec("s", **wrong, connect_attempts=1)))


def test_the_catalogue_refuses_a_name_that_is_there_twice(tmp_path: Path, shared: "HttpServer") -> None:
    file = tmp_path / "own.py"
    file.write_text('def add(a: int, b: int) -> int:\n    """Adds."""\n    return a + b\n')
    server = McpServerConfig(name="s", url=shared.url, tools=("add",))
    with pytest.raises(ConfigError, match=r"two tools are named add: that of .*own\.py:add and that of s \("):
        asyncio.run(load_tools(ToolsConfig(mcp_servers=(server,), functions=(f"{file}:add",))))


def test_servers_of_a_file_in_verls_form_are_the_same_servers(
    tmp_path: Path, shared: "HttpServer", caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"one": {"url": shared.url, "disabled": False}}}))
    (tmp_path / "tool_config.yaml").write_text(
        "tools:\n- class_name: verl.tools.mcp_search_tool.MCPSearchTool\n  config: {type: mcp, rate_limit: 120}\n"
        "  mcp: {mcp_servers_config_path: servers.json, tool_selected_list: [environment]}\n"
    )

    async def load() -> str:
        async with await load_tools(ToolsConfig(config_path=tmp_path / "tool_config.yaml")) as catalogue:
            assert list(catalogue.tools) == ["environment"]
            return (await catalogue.tools["environment"].execute("i", {"name": "NOT_SET"})).text

    assert asyncio.run(load()).startswith("None ")
    assert "tools[0]: config.rate_limit has no effect here" in caplog.text


def test_programs_of_such_a_file_have_their_arguments_and_variables(tmp_path: Path) -> None:
    path = tmp_path / "servers.json"
    path.write_text(json.dumps({"mcpServers": {"one": {"command": "run", "args": ["-x"], "env": {"A": "b"}}}}))
    assert read_servers(path, tools=("t",)) == (McpServerSpec("one", ("run", "-x"), env={"A": "b"}, tools=("t",)),)
    url = {"url": "http://h/mcp", "auth_token": "t", "headers": {"X": "y"}, "transport": "http"}
    path.write_text(json.dumps({"mcpServers": {"two": url, "off": {"command": "run", "disabled": True}}}))
    (found,) = read_servers(path, tools=())
    assert found.headers == {"X": "y", "Authorization": "Bearer t"}
    assert "Bearer" not in repr(found)
    for servers, why in (
        ({}, r"servers\.json, mcpServers: "),
        ({"one": {}}, r"mcpServers\.one needs either command or url"),
        ({"one": {"command": 3}}, r"servers\.json, mcpServers\.one\.command: "),
        ({"one": {"url": "http://h", "transport": "sse"}}, r"mcpServers\.one\.transport: Input should be 'stdio'"),
    ):
        path.write_text(json.dumps({"mcpServers": servers}))
        with pytest.raises(ConfigError, match=why):
            read_servers(path, tools=())
    path.write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        read_servers(path, tools=())
