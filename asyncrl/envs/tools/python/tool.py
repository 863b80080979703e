"""The tool `python`: a process for each call, or one for all calls of an episode."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from asyncrl import waits
from asyncrl.config.tools import PythonToolConfig
from asyncrl.data.values import Json
from asyncrl.envs.tools.base import ToolAnswer, ToolError
from asyncrl.envs.tools.python.process import Confined, Ended, PythonProcess
from asyncrl.errors import PreflightError

log = logging.getLogger(__name__)

NAME = "python"
MAX_CODE_CHARS = 256 << 10
WAIT = "tool call waits for a free process of python"
ABOUT = "Runs Python code and returns what it prints, and the value of a last expression. No network, no files kept"
KEPT, NOT_KEPT = "Variables and imports are kept for the next call.", "Each call starts anew: nothing is kept."


class PythonTool:
    """Code of the model in confined processes. At most max_running calls run at once; further ones wait."""

    name = NAME

    def __init__(self, config: PythonToolConfig) -> None:
        self._config = config
        self._places = asyncio.Semaphore(config.max_running)
        self._kept: dict[str, PythonProcess] = {}
        self._running: set[PythonProcess] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._ending: set[asyncio.Task[None]] = set()
        kept = KEPT if config.keep_state else NOT_KEPT
        parameters: dict[str, Json] = {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code to run."}},
            "required": ["code"],
            "additionalProperties": False,
        }
        function: dict[str, Json] = {"name": NAME, "description": f"{ABOUT}. {kept}", "parameters": parameters}
        self.schema: Mapping[str, Json] = {"type": "function", "function": function}

    @property
    def keeps_state(self) -> bool:
        """With keep_state."""
        return self._config.keep_state

    async def create(self, instance_id: str, **kwargs: Json) -> None:
        """Nothing yet: a process is started by the first call."""
        self._locks[instance_id] = asyncio.Lock()

    async def execute(self, instance_id: str, arguments: Mapping[str, Json]) -> ToolAnswer:
        """Run arguments["code"]. A call that ends with an error, or with its process, says so in its text."""
        code = arguments.get("code")
        if not isinstance(code, str) or set(arguments) != {"code"}:
            raise ToolError("python takes one argument, code, which is text")
        if len(code) > MAX_CODE_CHARS:
            raise ToolError(f"the code has {len(code)} characters, and at most {MAX_CODE_CHARS} are run")
        if not self._config.keep_state:
            await self._wait_for_place()
            return await self._run(PythonProcess(self._config), code)
        async with self._locks[instance_id]:  # calls of one turn, one after the other
            await self._wait_for_place()
            try:
                return await self._run_kept(instance_id, code)
            finally:
                self._places.release()

    async def _wait_for_place(self) -> None:
        with waits.timed(WAIT, lambda: f"rollout.tools.python.max_running = {self._config.max_running} are busy"):
            await self._places.acquire()

    async def calc_reward(self, instance_id: str) -> None:
        """It has no opinion."""

    async def release(self, instance_id: str) -> None:
        """End the episode's process."""
        self._locks.pop(instance_id, None)
        process = self._kept.pop(instance_id, None)
        if process is not None:
            await process.end()

    async def close(self) -> None:
        """End every process that is left, and wait until they are gone."""
        left = [*self._kept.values(), *self._running]
        self._kept.clear()
        await asyncio.gather(*(process.end() for process in left), *self._ending, return_exceptions=True)

    async def _run(self, process: PythonProcess, code: str) -> ToolAnswer:
        """Run a call in a process of its own. Its place is free when the process is gone, not before."""
        self._running.add(process)
        try:
            await process.start()
            ran = await process.run(code)
        except Ended as ended:
            return ToolAnswer(str(ended), is_error=True)
        finally:
            self._running.discard(process)
            self._in_background(process.end(), then=self._places.release)  # also when this is cancelled
        return ToolAnswer(ran.output, is_error=not ran.ok)

    async def _run_kept(self, instance_id: str, code: str) -> ToolAnswer:
        process = self._kept.get(instance_id)
        try:
            if process is None:
                process = PythonProcess(self._config)
                self._kept[instance_id] = process
                await process.start()
            ran = await process.run(code)
        except Ended as ended:
            self._lose(instance_id)
            return ToolAnswer(f"{ended}\n[variables are lost; the next call starts anew]", is_error=True)
        except BaseException:
            self._lose(instance_id)
            raise
        return ToolAnswer(ran.output, is_error=not ran.ok)

    def _lose(self, instance_id: str) -> None:
        process = self._kept.pop(instance_id, None)
        if process is not None:
            self._in_background(process.end())

    def _in_background(self, work: Coroutine[Any, Any, None], then: Callable[[], None] = lambda: None) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._ending.discard(task)
            then()
            if not task.cancelled() and task.exception() is not None:
                log.error("a process of the tool python was not ended", exc_info=task.exception())

        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(ended)


async def probe(config: PythonToolConfig) -> Confined:
    """Start one process, and say how far it is cut off from the machine.

    Raises:
        PreflightError: it does not start, or rollout.tools.python.isolation = required and the kernel refuses.
    """
    process = PythonProcess(config)
    try:
        found = await process.start()
        await process.run("1")
    except Ended as ended:
        raise PreflightError(
            f"the tool python does not start: {ended}. With rollout.tools.python.isolation = required the kernel must "
            "permit namespaces (user.max_user_namespaces, or a container that may use unshare and mount)."
        ) from None
    finally:
        await process.end()
    return found


async def load_python(config: PythonToolConfig) -> PythonTool:
    """The tool, after one try. Where it is not cut off from the machine, the log says so. Raises: see probe."""
    found = await probe(config)
    if not found.isolated:
        log.warning("the tool python is not cut off from network and files of this machine: %s", found.why)
    return PythonTool(config)
