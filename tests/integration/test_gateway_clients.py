"""The official clients of OpenAI's and Anthropic's protocols drive the gateway: whole and streamed, tools, errors."""

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import anthropic
import httpx
import openai
import pytest

from asyncrl.rollout.gateway import anthropic_messages, openai_chat, openai_responses
from asyncrl.rollout.gateway.request_fields import FieldTable
from tests.support import fast_engine, gateway_process
from tests.support.fast_engine import running_engine
from tests.support.gateway_process import RunningGateway, make_model, running_gateway

CALL = '<tool_call>\n{"name": "calc", "arguments": {"expr": "4*5", "why": "caf\u00e9 \u2764"}}\n</tool_call>'
ARGUMENTS = {"expr": "4*5", "why": "caf\u00e9 \u2764"}
DONE = "done\n</tool_response>"
"""What stands behind the # of a tool's answer as the template writes it."""
UNICODE = "caf\u00e9 \u2764 \U0001f600 \u65e5\u672c\u8a9e"
# Certificates are read for every client that is made, and most of a test would be that.
HTTP = httpx.Client(verify=False)
OPENAI_HTTP, ANTHROPIC_HTTP = openai.DefaultHttpxClient(verify=False), anthropic.DefaultHttpxClient(verify=False)
SCHEMA = {"type": "object", "properties": {"expr": {"type": "string"}}}
FUNCTION = {"name": "calc", "description": "Computes.", "parameters": SCHEMA}
CHAT_TOOLS: Any = [{"type": "function", "function": FUNCTION}]
RESPONSE_TOOLS: Any = [{"type": "function", **FUNCTION}]
MESSAGE_TOOLS: Any = [{"name": "calc", "description": "Computes.", "input_schema": SCHEMA}]


@dataclass
class Scene:
    """A gateway over an engine that repeats what stands behind a # of its prompt, behind a @ slowly."""

    gateway: RunningGateway
    engine: str
    speed: fast_engine.Settings
    engine_lives: ExitStack

    def open(self) -> dict[str, Any]:
        """A session of its own."""
        return self.post("/sessions", {"kind": "online"})

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.gateway.key}"}
        reply = HTTP.post(self.gateway.url + path, json=body, headers=headers)
        assert reply.status_code in (200, 201), reply.text
        return dict(reply.json())

    def state(self, session: dict[str, Any]) -> dict[str, Any]:
        """What the gateway says of a session."""
        headers = {"authorization": f"Bearer {session['api_key']}"}
        return dict(HTTP.get(f"{self.gateway.url}/sessions/{session['id']}", headers=headers).json())

    def reward(self, session: dict[str, Any], reward: float = 1.0) -> dict[str, Any]:
        """End a session with its reward, and wait for its trajectory."""
        self.post(f"/sessions/{session['id']}/end", {"reward": reward})
        for _ in range(2000):
            found = self.gateway.report()["trajectories"]
            if found:
                (one,) = found
                return dict(one)
        raise AssertionError("the trajectory did not come")

    def openai(self, session: dict[str, Any], **options: Any) -> openai.OpenAI:
        options["http_client"] = OPENAI_HTTP
        return openai.OpenAI(base_url=session["base_url"], api_key=session["api_key"], **options)

    def anthropic(self, session: dict[str, Any], **options: Any) -> anthropic.Anthropic:
        options["http_client"] = ANTHROPIC_HTTP
        return anthropic.Anthropic(base_url=session["anthropic_base_url"], api_key=session["api_key"], **options)

    def counts(self) -> dict[str, int]:
        """What the engine counted."""
        return dict(HTTP.get(self.engine + "/counts").json())


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    model = tmp_path_factory.mktemp("model")
    speed = replace(make_model(model), tokens_per_s=100_000.0)
    limits = (("stream_tokens", 3), ("max_turns_in_flight", 2))
    with ExitStack() as stack:
        lives = stack.enter_context(ExitStack())
        engine = lives.enter_context(running_engine(speed))
        settings = gateway_process.Settings(gateway=limits, server_wait_s=0.5)
        gateway = stack.enter_context(running_gateway(engine, model, settings))
        yield Scene(gateway, engine, speed, lives)


def test_a_chat_goes_on_and_is_one_row_with_the_tokens_that_were_sampled(scene: Scene) -> None:
    session = scene.open()
    client = scene.openai(session)
    messages: list[Any] = [{"role": "system", "content": "Be brief."}]
    for turn in range(3):
        messages.append({"role": "user", "content": f"say #{UNICODE} {turn}"})
        done = client.chat.completions.create(model="any", messages=messages, logprobs=True)
        choice = done.choices[0]
        assert (choice.message.content, choice.finish_reason) == (f"{UNICODE} {turn}", "stop")
        assert done.usage is not None
        assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert len(choice.logprobs.content) == done.usage.completion_tokens
        messages.append(choice.message)
    state = scene.state(session)
    assert (state["turns"], len(state["rows"]), state["rows_begun"]) == (3, 1, {})
    trajectory = scene.reward(session)
    assert trajectory["num_turns"] == 3
    (row,) = trajectory["rows"]
    assert row["sampled"].count("|") == 3


def test_a_streamed_chat_never_cuts_a_character_and_joins_to_the_whole(scene: Scene) -> None:
    client = scene.openai(scene.open())
    ask: Any = {"model": "any", "messages": [{"role": "user", "content": f"say #{UNICODE}"}]}
    pieces, usage = [], None
    with client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}) as stream:
        for chunk in stream:
            pieces += [choice.delta.content or "" for choice in chunk.choices]
            usage = chunk.usage or usage
    assert "".join(pieces) == UNICODE
    assert not any("\ufffd" in piece for piece in pieces)
    assert sum(map(bool, pieces)) > 1
    assert usage is not None


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_in_a_chat_and_its_result_goes_on_in_the_same_row(scene: Scene, stream: bool) -> None:
    session = scene.open()
    client = scene.openai(session)
    messages: list[Any] = [{"role": "user", "content": f"compute #Let me see. {CALL}"}]
    ask: Any = {"model": "any", "messages": messages, "tools": CHAT_TOOLS}
    if stream:
        with client.chat.completions.stream(**ask) as events:
            for _ in events:
                pass
            choice: Any = events.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**ask).choices[0]
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    assert (call.function.name, json.loads(call.function.arguments)) == ("calc", ARGUMENTS)
    sent_back = {"role": "assistant", "content": choice.message.content, "tool_calls": [call.model_dump()]}
    messages += [sent_back, {"role": "tool", "tool_call_id": call.id, "content": "20 #done"}]
    done = client.chat.completions.create(model="any", messages=messages, tools=CHAT_TOOLS)
    assert done.choices[0].message.content == DONE
    assert scene.state(session)["rows_begun"] == {}


@pytest.mark.parametrize("stream", [False, True])
def test_responses_with_a_tool(scene: Scene, stream: bool) -> None:
    session = scene.open()
    client = scene.openai(session)
    items: list[Any] = [{"role": "user", "content": f"compute #Let me see. {CALL}"}]
    ask: Any = {"model": "any", "input": items, "tools": RESPONSE_TOOLS, "instructions": "Be brief.", "store": False}
    if stream:
        with client.responses.stream(**ask) as events:
            texts = [event.delta for event in events if event.type == "response.output_text.delta"]
            response: Any = events.get_final_response()
        assert "".join(texts) == response.output_text
    else:
        response = client.responses.create(**ask)
    assert (response.status, response.output_text) == ("completed", "Let me see.")
    call = response.output[-1]
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "calc", ARGUMENTS)
    items += [item.model_dump(exclude_none=True) for item in response.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "20 #done"})
    for item in items:
        item.pop("parsed_arguments", None)
    assert client.responses.create(**{**ask, "input": items}).output_text == DONE
    assert scene.state(session)["rows_begun"] == {}


@pytest.mark.parametrize("stream", [False, True])
def test_messages_with_a_tool(scene: Scene, stream: bool) -> None:
    session = scene.open()
    client = scene.anthropic(session)
    messages: list[Any] = [{"role": "user", "content": f"compute #Let me see. {CALL}"}]
    ask: Any = {"model": "any", "max_tokens": 256, "tools": MESSAGE_TOOLS, "system": "Be brief."}
    if stream:
        with client.messages.stream(**ask, messages=messages) as events:
            texts = list(events.text_stream)
            message: Any = events.get_final_message()
        assert "".join(texts) == "Let me see."
        assert not any("\ufffd" in text for text in texts)
    else:
        message = client.messages.create(**ask, messages=messages)
    text, call = message.content
    assert (message.stop_reason, text.text, call.name, call.input) == ("tool_use", "Let me see.", "calc", ARGUMENTS)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "20 #done"}
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    done = client.messages.create(**ask, messages=messages)
    assert (done.content[0].text, done.stop_reason) == (DONE, "end_turn")
    assert done.usage.input_tokens > message.usage.input_tokens
    assert scene.state(session)["rows_begun"] == {}


def test_stop_sequences_and_lengths_end_an_answer_and_are_told_apart(scene: Scene) -> None:
    client = scene.anthropic(scene.open())
    ask: Any = {"model": "any", "messages": [{"role": "user", "content": "say #one two three"}]}
    stopped = client.messages.create(**ask, max_tokens=64, stop_sequences=[" three"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " three")
    assert stopped.content[0].text == "one two"
    cut = client.messages.create(**ask, max_tokens=2)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
    chat = scene.openai(scene.open()).chat.completions.create(**ask, max_tokens=2)
    assert chat.choices[0].finish_reason == "length"
    response = scene.openai(scene.open()).responses.create(model="any", input="say #one two", max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_tokens_are_counted_as_the_model_would_read_them(scene: Scene) -> None:
    client = scene.anthropic(scene.open())
    messages: Any = [{"role": "user", "content": "say #hello"}]
    counted = client.messages.count_tokens(model="any", messages=messages, tools=MESSAGE_TOOLS)
    done = client.messages.create(model="any", messages=messages, tools=MESSAGE_TOOLS, max_tokens=8)
    assert counted.input_tokens == done.usage.input_tokens


def test_the_policy_is_the_one_model(scene: Scene) -> None:
    session = scene.open()
    assert [model.id for model in scene.openai(session).models.list()] == ["policy"]
    assert scene.openai(session).models.retrieve("policy").id == "policy"
    assert [model.id for model in scene.anthropic(session).models.list()] == ["policy"]
    with pytest.raises(openai.NotFoundError):
        scene.openai(session).models.retrieve("another")


def test_errors_are_the_clients_own(scene: Scene) -> None:
    session = scene.open()
    ask: Any = {"model": "any", "messages": [{"role": "user", "content": "q"}]}
    client, messages = scene.openai(session), scene.anthropic(session).messages
    with pytest.raises(openai.BadRequestError, match="one answer") as bad:
        client.chat.completions.create(**ask, n=2)
    assert bad.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="No policy can be made"):
        client.chat.completions.create(**ask, tools=CHAT_TOOLS, tool_choice="required")
    with pytest.raises(openai.BadRequestError, match="Nothing is stored"):
        client.responses.create(model="any", input="q", previous_response_id="resp_1")
    with pytest.raises(anthropic.BadRequestError, match=r"rollout\.top_k"):
        messages.create(**ask, max_tokens=8, extra_body={"top_k": 3})
    wrong = {**session, "api_key": "wrong", "base_url": scene.gateway.url + "/v1"}
    with pytest.raises(openai.AuthenticationError):
        scene.openai(wrong).chat.completions.create(**ask)
    with pytest.raises(anthropic.AuthenticationError):
        scene.anthropic({**wrong, "anthropic_base_url": scene.gateway.url}).messages.create(**ask, max_tokens=8)


def test_every_field_that_the_clients_can_send_is_known() -> None:
    chat, messages = openai.OpenAI(api_key="k"), anthropic.Anthropic(api_key="k")
    sent_by: dict[Callable[..., Any], FieldTable] = {
        chat.chat.completions.create: openai_chat.FIELDS,
        chat.responses.create: openai_responses.FIELDS,
        messages.messages.create: anthropic_messages.FIELDS,
        messages.beta.messages.create: anthropic_messages.FIELDS,
    }
    of_clients = {"self", "timeout", "extra_headers", "extra_query", "extra_body"}
    for create, table in sent_by.items():
        fields = inspect.signature(create).parameters.keys() - of_clients
        assert fields - table.read - table.ignored - table.refused.keys() == set(), create


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request_at_the_engine_and_the_session_goes_on(
    scene: Scene, protocol: str, stream: bool
) -> None:
    session = scene.open()
    aborts = scene.counts()["aborts"]
    ask: Any = {"model": "any", "messages": [{"role": "user", "content": "say @" + "a b c d e f g h " * 8}]}
    options: dict[str, Any] = {"max_retries": 0, "timeout": 60.0 if stream else 0.4}
    chat: Any = scene.openai(session, **options).chat.completions
    if protocol == "anthropic":
        chat, ask = scene.anthropic(session, **options).messages, {**ask, "max_tokens": 256}
    if stream:
        with chat.create(**ask, stream=True) as events:
            next(iter(events))
    else:
        with pytest.raises((openai.APITimeoutError, anthropic.APITimeoutError)):
            chat.create(**ask)
    for _ in range(2000):
        counts = scene.counts()
        if counts["aborts"] > aborts and not counts["running"]:
            break
    else:
        raise AssertionError(f"the engine still samples: {counts}")
    state = scene.state(session)
    assert (state["turns"], state["rows"]) == (0, [])
    done = scene.openai(session).chat.completions.create(model="any", messages=[{"role": "user", "content": "say #x"}])
    assert done.choices[0].message.content == "x"
    assert scene.state(session)["turns"] == 1


def test_too_many_turns_of_a_session_are_told_to_come_back(scene: Scene) -> None:
    session = scene.open()
    client = scene.openai(session, max_retries=0)
    ask: Any = {"model": "any", "messages": [{"role": "user", "content": "say @" + "a b c d e f g h " * 8}]}
    with ExitStack() as streams:
        for _ in range(2):
            next(iter(streams.enter_context(client.chat.completions.create(**ask, stream=True))))
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(**ask)
        assert int(refused.value.response.headers["retry-after"]) >= 1
        with pytest.raises(anthropic.RateLimitError):
            scene.anthropic(session, max_retries=0).messages.create(**ask, max_tokens=8)


def test_an_engine_that_dies_is_an_error_in_the_stream_and_before_it_a_status(scene: Scene) -> None:
    ask: Any = {"model": "any", "messages": [{"role": "user", "content": "say @" + "a b c d e f g h " * 8}]}
    sessions = [scene.open() for _ in range(3)]
    chat = scene.openai(sessions[0], max_retries=0)
    responses = scene.openai(sessions[1], max_retries=0).responses
    messages = scene.anthropic(sessions[2], max_retries=0).messages
    with ExitStack() as streams:
        open_ones: list[Any] = [
            streams.enter_context(chat.chat.completions.create(**ask, stream=True)),
            streams.enter_context(responses.create(model="any", input=ask["messages"], stream=True)),
            streams.enter_context(messages.create(**ask, max_tokens=256, stream=True)),
        ]
        for stream in open_ones:
            next(iter(stream))
        scene.engine_lives.close()
        with pytest.raises(openai.APIError, match="server"):
            list(open_ones[0])
        last = list(open_ones[1])[-1]
        assert last.type == "response.failed"
        assert "server" in last.response.error.message
        with pytest.raises(anthropic.APIStatusError, match="server"):
            list(open_ones[2])
    with pytest.raises(openai.InternalServerError) as refused:
        chat.chat.completions.create(**ask)
    assert refused.value.status_code == 503
    with pytest.raises(anthropic.InternalServerError):
        messages.create(**ask, max_tokens=8)
    assert all(scene.state(session)["turns"] == 0 for session in sessions)
    again = replace(scene.speed, port=int(scene.engine.rpartition(":")[2]))
    scene.engine_lives.enter_context(running_engine(again))
    ask = {"model": "any", "messages": [{"role": "user", "content": "say #x"}]}
    assert scene.openai(sessions[0]).chat.completions.create(**ask).choices[0].message.content == "x"
