"""A process of its own: plays rollouts of a verifiers environment, asking us for each of the model's turns.

Runs on the Python that has verifiers, by its path, and imports nothing of ours.

consumes  one JSON object a line on standard input: load, rows, begin, answer, cancel
produces  one JSON object a line on what was standard output: loaded, row, rows_end, prompt, end, failed, fatal

The environment drives: its own rollout runs here, with a client that sends each request for a completion to us and
waits for the answer. So whatever a class overrides, tools and state and stop conditions, is as its author wrote it.
"""

import asyncio
import contextvars
import ctypes
import functools
import importlib
import inspect
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

LINE_BYTES = 64 << 20
OPTIONS = ("-u", "-P")
"""Of the Python: what it prints comes at once, and the modules beside this file stand in the way of no other."""

_RECORDED = "_asyncrl_is_recorded"
_failures: contextvars.ContextVar[list[str]] = contextvars.ContextVar("failures")


class Wire:
    """Lines out; prints of libraries go to standard error, where they break no line."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        sys.stdout = sys.stderr

    def send(self, op: str, **fields: object) -> None:
        """One line, at once."""
        self._out.write(json.dumps({"op": op, **fields}, default=str) + "\n")
        self._out.flush()


class Bridge:
    """One environment and the episodes that are played in it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._env: Any = None
        self._episodes: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[str, asyncio.Future[Mapping[str, Any]]] = {}

    async def serve(self) -> None:
        """Until standard input is closed."""
        reader = asyncio.StreamReader(limit=LINE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            request = json.loads(line)
            try:
                getattr(self, f"_do_{request.pop('op')}")(**request)
            except Exception as error:  # the environment is anybody's code, and so is what it holds
                self._wire.send("fatal", error=told(error), episode=request.get("episode"))
        for task in self._episodes.values():
            task.cancel()
        await asyncio.gather(*self._episodes.values(), return_exceptions=True)

    def _do_load(self, environment: str, args: Mapping[str, Any], max_turns: int) -> None:
        load = importlib.import_module("verifiers").load_environment
        self._env = load(environment, **args)
        if getattr(self._env.rubric, "has_group_rewards", False):
            raise ValueError("its rubric scores a group of rollouts together; episodes here are scored one by one")
        for env in (self._env, *getattr(self._env, "envs", ())):
            own = getattr(env, "max_turns", 0)
            env.max_turns = min(own, max_turns) if own > 0 else max_turns
            record_failures(env.rubric)
        self._wire.send("loaded", version=importlib.import_module("verifiers").__version__)

    def _do_rows(self, split: str, limit: int) -> None:
        for row in self._dataset(split, limit):
            kept = {key: value for key, value in dict(row).items() if value is not None}
            tools = kept["info"].get("tool_defs") if isinstance(kept.get("info"), Mapping) else None
            defined = tools or getattr(self._env, "tool_defs", None) or ()
            shown = [plain_message(message) for message in kept["prompt"]]
            self._wire.send("row", row=kept, messages=shown, tools=[schema(tool) for tool in defined])
        self._wire.send("rows_end")

    def _dataset(self, split: str, limit: int) -> Any:
        if split == "train":
            return self._env.get_dataset(n=limit)
        own = getattr(self._env, "eval_dataset_source", None) or getattr(self._env, "eval_dataset", None)
        return self._env.get_eval_dataset(n=limit) if own is not None else ()  # else it would be the training data

    def _do_begin(self, episode: str, row: dict[str, Any]) -> None:
        self._episodes[episode] = asyncio.create_task(self._play(episode, row))

    def _do_answer(self, episode: str, **answer: Any) -> None:
        waiting = self._turns.get(episode)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _do_cancel(self, episode: str) -> None:
        if task := self._episodes.get(episode):
            task.cancel()

    async def _play(self, episode: str, row: dict[str, Any]) -> None:
        failures: list[str] = []
        _failures.set(failures)
        try:
            client = make_client(functools.partial(self._ask, episode))
            state = await self._env.rollout(row, client, "policy", {})
            if state.get("error") is None:
                await self._env.rubric.score_rollout(state)
            if hasattr(self._env.rubric, "cleanup"):
                await self._env.rubric.cleanup(state)
            self._wire.send("end", episode=episode, **ended(state, failures))
        except Exception as error:
            self._wire.send("failed", episode=episode, error=told(error))
        finally:
            self._episodes.pop(episode, None)
            self._turns.pop(episode, None)

    async def _ask(self, episode: str, messages: list[Any], tools: list[Any]) -> Mapping[str, Any]:
        turn = self._turns[episode] = asyncio.get_running_loop().create_future()
        shown = [plain_message(message) for message in messages]
        self._wire.send("prompt", episode=episode, messages=shown, tools=[schema(tool) for tool in tools])
        answer: Mapping[str, Any] = await turn
        return answer


def ended(state: Mapping[str, Any], failures: list[str]) -> dict[str, object]:
    """What became of a rollout. A reward function that raised has been counted as 0 by the rubric: here it is an error,
    so that no failure is trained on as a wrong answer."""
    error = state.get("error")
    if error is not None:
        return {"reward": None, "error": told(error) if isinstance(error, BaseException) else str(error)}
    if failures:
        return {"reward": None, "error": f"a reward function failed: {failures[0]}"}
    metrics = {name: float(value) for name, value in (state.get("metrics") or {}).items()}
    return {"reward": float(state["reward"]), "metrics": metrics, "stop": str(state.get("stop_condition"))}


def record_failures(rubric: Any) -> None:
    """Have the functions of a rubric, and of those inside of it, say when they raise."""
    rubric.funcs = [recorded(function) for function in rubric.funcs]
    for inner in getattr(rubric, "rubrics", ()):
        record_failures(inner)


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, by name and signature; what it raises is noted for the episode that is scored."""
    if hasattr(function, _RECORDED):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            value = function(*args, **kwargs)
        except Exception as error:
            _note(function, error)
            raise
        return _awaited(value) if inspect.isawaitable(value) else value

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return await _awaited(function(*args, **kwargs))

    async def _awaited(value: Awaitable[Any]) -> Any:
        try:
            return await value
        except Exception as error:
            _note(function, error)
            raise

    wrapper: Callable[..., Any] = call_async if inspect.iscoroutinefunction(function) else call
    setattr(wrapper, _RECORDED, True)
    return wrapper


def _note(function: Callable[..., Any], error: Exception) -> None:
    _failures.get([]).append(f"{getattr(function, '__name__', function)}: {told(error)}")


def make_client(ask: Callable[[list[Any], list[Any]], Awaitable[Mapping[str, Any]]]) -> Any:
    """A verifiers client whose completions are ours."""
    types = importlib.import_module("verifiers.types")
    base = importlib.import_module("verifiers.clients").Client

    class PolicyClient(base):  # type: ignore[misc, valid-type]
        """Hands messages through; what it is asked for comes back as the policy's answer."""

        def setup_client(self, config: Any) -> None:
            return None

        async def to_native_tool(self, tool: Any) -> Any:
            return tool

        async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
            return messages, {}

        async def get_native_response(
            self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any
        ) -> Any:
            return await ask(list(prompt), list(tools or ()))

        async def raise_from_native_response(self, response: Any) -> None:
            return None

        async def from_native_response(self, response: Mapping[str, Any]) -> Any:
            calls = [types.ToolCall(**call) for call in response["tool_calls"]] or None
            is_cut = response["finish_reason"] == "length"
            message = types.ResponseMessage(
                content=response["content"],
                tool_calls=calls,
                finish_reason="length" if is_cut else ("tool_calls" if calls else "stop"),
                is_truncated=is_cut,
            )
            return types.Response(id="policy", created=int(time.time()), model="policy", message=message)

        async def close(self) -> None:
            return None

    return PolicyClient(None)


def plain_message(message: Any) -> dict[str, Any]:
    """A message as chat templates take it. Raises ValueError for parts that are no text."""
    fields = dict(message) if isinstance(message, Mapping) else message.model_dump(exclude_none=True)
    content = fields.get("content")
    if isinstance(content, list):
        parts = [dict(part) if isinstance(part, Mapping) else part.model_dump() for part in content]
        if any(part.get("type") != "text" for part in parts):
            raise ValueError("the environment shows something that is no text, and only text can be trained on")
        content = "".join(part["text"] for part in parts)
    plain = {"role": fields["role"], "content": content or ""}
    if fields.get("tool_call_id"):
        plain["tool_call_id"] = fields["tool_call_id"]
    return plain


def schema(tool: Any) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    fields = dict(tool) if isinstance(tool, Mapping) else tool.model_dump(exclude_none=True)
    return fields if "function" in fields else {"type": "function", "function": fields}


def told(error: BaseException) -> str:
    """An error and what caused it, in one line."""
    texts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(texts) < 4:
        texts.append(f"{type(seen).__name__}: {' '.join(str(seen).split())[:300]}")
        seen = seen.__cause__
    return " <- ".join(texts)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables for this process: without those that would send another Python to our library, or our secrets to one
    that is not ours."""
    return {name: text for name, text in variables.items() if name != "PYTHONHOME" and not name.startswith("ASYNCRL_")}


def die_with_parent() -> None:
    """Have the kernel end this process with ours, which notices sooner than an environment that is busy."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main() -> int:
    """Entry."""
    die_with_parent()
    wire = Wire()
    try:
        asyncio.run(Bridge(wire).serve())
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
