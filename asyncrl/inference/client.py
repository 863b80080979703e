"""Ask one inference server over SGLang's HTTP protocol: generate, and what its ControlClient asks.

Every request has a deadline; every failure is one of `errors`' three. Traps of the protocol that this module absorbs
(SGLang 0.5.23): token ids outside the vocabulary kill the server; abort works by prefix of the request id; an abort
and even a refusal come as HTTP 200.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from asyncrl.errors import ServerError
from asyncrl.inference.batching import Batcher, Question
from asyncrl.inference.control_client import ControlClient, encoded
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerUnavailable
from asyncrl.inference.experts import ExpertCounts
from asyncrl.inference.id_text import IdText
from asyncrl.inference.protocol import Answer, Sampling, parse_answer
from asyncrl.inference.streaming import AnswerStream, Watch


class ServerClient(ControlClient):
    """One server by address. Not thread-safe, and bound to the event loop that it is used in.

    Args:
        url: http://host:port.
        vocab_size: ids at or above it are refused here, before they would kill the server.
        api_key: sent with every call, as a bearer; None: the environment's (see `key`).
        control_s: deadline of each call that is not a generation.
        experts: ask of each generation which experts its tokens were sent to. None: do not.
        batches: whether short questions share a request, whose answers come together; else none waits for another.
    """

    streams = True
    """Whether answers can be watched as they come; else, and with experts, they come at once all the same."""

    def __init__(
        self,
        url: str,
        *,
        vocab_size: int,
        api_key: str | None = None,
        control_s: float = 120.0,
        experts: ExpertCounts | None = None,
        batches: bool = True,
    ) -> None:
        super().__init__(url, api_key=api_key, control_s=control_s)
        self._vocab_size, self._experts = vocab_size, experts
        self._id_text = IdText(vocab_size)
        # Abort matches by prefix, so no id may begin with another: all have one length.
        self._ids, self._num_requests = uuid.uuid4().hex, 0
        self._batcher = Batcher(self._ask) if batches else None

    def next_rid(self) -> str:
        """A request id of its own, for `generate` and `abort`."""
        self._num_requests += 1
        return f"{self._ids}{self._num_requests:010x}"

    async def generate(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        *,
        extra_key: str | None,
        deadline_s: float,
        rid: str | None = None,
        watch: Watch | None = None,
    ) -> Answer:
        """Continue `token_ids` with sampled tokens and their logprobs.

        Args:
            token_ids: prompt and everything after it so far; nothing is ever tokenized again.
            sampling: how to draw.
            extra_key: separates prefix caches; the weight version, because the cache is not keyed by it.
            deadline_s: seconds until the request is given up, and thereby aborted at the server.
            rid: of `next_rid`, for who may want to abort it.
            watch: sees the tokens as they come, where the server can say them before the answer is whole. If it is
                lost after some were shown, the answer is what was shown, cut.
        Raises:
            RequestRefused: an id outside the vocabulary, or the server's 4xx with its text.
            ServerUnavailable: dropped, busy, timed out, 5xx.
            MalformedAnswer: the answer contradicts itself.
        """
        try:
            json_ids = self._id_text.write(token_ids)
        except ValueError:
            wrong = [token for token in token_ids if not 0 <= token < self._vocab_size][:5]
            raise RequestRefused(
                f"a request of {len(token_ids)} tokens with ids {wrong} outside 0..{self._vocab_size - 1} was not "
                "sent: it would kill the server. The tokenizer does not belong to model.path."
            ) from None
        question = Question(rid or self.next_rid(), token_ids, json_ids, sampling, extra_key, deadline_s)
        if watch is not None and self.streams and self._experts is None:
            return await self._streamed(question, watch)
        if self._batcher is not None and question.is_short:
            return await self._batcher.answer(question)
        answer = (await self._ask((question,)))[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _streamed(self, question: Question, watch: Watch) -> Answer:
        request = self._request((question,), watch)
        stream = AnswerStream(watch, f"{self.url}/generate")
        try:
            reply = await self._connections.request(
                "POST", "/generate", request, deadline_s=question.deadline_s, on_event=stream.take
            )
            if reply.status != 200:
                self._raise_for(reply.status, "/generate", reply.body)
            return parse_answer(stream.whole(), f"{self.url}/generate")
        except ServerUnavailable:
            if not stream.num_shown:
                raise
            return parse_answer(stream.so_far(), f"{self.url}/generate")

    async def _ask(self, questions: Sequence[Question]) -> list[Answer | Exception]:
        """One request for all of them, which have one key."""
        alone, request = len(questions) == 1, self._request(questions)
        body = await self._call("POST", "/generate", request, questions[0].deadline_s)
        bodies = [body] if alone else body
        if not isinstance(bodies, list) or len(bodies) != len(questions) or not isinstance(bodies[0], Mapping):
            raise MalformedAnswer(
                "shape", f"{self.url}/generate: expected {len(questions)} answers, found {str(body)[:200]}"
            )
        return [self._parsed(one, question) for one, question in zip(bodies, questions, strict=True)]

    def _request(self, questions: Sequence[Question], watch: Watch | None = None) -> bytes:
        alone, first = len(questions) == 1, questions[0]
        rids, sampling = [q.rid for q in questions], [q.sampling.to_json() for q in questions]
        if watch is not None:
            sampling[0]["stream_interval"] = watch.every
        request: dict[str, object] = {
            "sampling_params": sampling[0] if alone else sampling,
            "rid": rids[0] if alone else rids,
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": watch is not None,
        }
        if first.extra_key is not None:
            request["extra_key"] = first.extra_key
        if self._experts is not None:
            request["return_routed_experts"] = True
        ids = b",".join([b"[%b]" % question.json_ids for question in questions])
        return b'{"input_ids":%b,%b' % (ids if alone else b"[%b]" % ids, encoded(request)[1:])

    def _parsed(self, body: Mapping[str, Any], question: Question) -> Answer | Exception:
        try:
            answer = parse_answer(body, f"{self.url}/generate")
            said = body["meta_info"].get("routed_experts")
            # An answer that was cut in the queue has none; whoever continues it has the server read its tokens again.
            if self._experts is None or not answer.token_ids or (said is None and answer.finish_reason == "abort"):
                return answer
            num_read = len(question.token_ids) + len(answer.token_ids) - 1
            return replace(answer, experts=self._experts.decode(said, num_read))
        except ServerError as error:
            return error
