"""An answer that comes in pieces: what is new in each is given on as it comes, and the last is checked as any answer.

Each event holds the whole answer so far, as SGLang's do unless it was started with --incremental-streaming-output, and
only the last one says which versions of the weights sampled it.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.errors import ServerError
from asyncrl.inference.errors import BUSY, MalformedAnswer, RequestRefused, ServerBusy, ServerUnavailable

DONE = b"[DONE]"
_VERSIONS = ("weight_version", "weight_versions")
_IDS = re.compile(rb'"output_ids": ?\[')  # in the text of an answer the second quote would be escaped


@dataclass(frozen=True, slots=True)
class Watch:
    """Who wants to see the tokens of an answer before it is whole.

    Attributes:
        every: tokens of a piece, about. The bytes of an answer grow with its length over this, times its length.
        show: is given the ids that are new, in order. Those that it was given are the beginning of the answer.
    """

    every: int
    show: Callable[[Sequence[int]], None]


class AnswerStream:
    """The events of one request.

    Args:
        path: for messages.
    """

    def __init__(self, watch: Watch, path: str) -> None:
        self._watch, self._path = watch, path
        self._shown: list[int] = []
        self._last = b""

    @property
    def num_shown(self) -> int:
        """Ids that were given on."""
        return len(self._shown)

    def take(self, data: bytes) -> None:
        """Take the data of one event.

        Raises:
            RequestRefused: it is an error; ServerUnavailable, ServerBusy: one that the request is not to blame for.
            MalformedAnswer: it is no answer so far, or contradicts those before it.
        """
        if data == DONE:
            return
        ids = self._ids_of(data)
        if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
            raise MalformedAnswer("shape", f"{self._path}: an event has no output_ids: {data[:200]!r}")
        if ids[: len(self._shown)] != self._shown:
            raise MalformedAnswer(
                "shape",
                f"{self._path}: an event has {len(ids)} ids, and not the {len(self._shown)} of before as its "
                "beginning. Start the server without --incremental-streaming-output.",
            )
        self._last, new = data, ids[len(self._shown) :]
        if new:
            self._shown = ids
            self._watch.show(new)

    def whole(self) -> Mapping[str, Any]:
        """The answer, once the stream has ended.

        Raises:
            MalformedAnswer: it ended before the answer did.
        """
        body = self._decoded(self._last) if self._last else {}
        if not _is_finished(body):
            raise MalformedAnswer("missing_field", f"{self._path}: the stream ended before its answer did.")
        return body

    def so_far(self) -> Mapping[str, Any]:
        """The answer as far as it came, if its server is gone: as one that was cut, under no version that it named,
        unless it is whole.

        What was shown cannot be sampled anew, since whoever saw it would see two beginnings.

        Raises:
            MalformedAnswer: its last event is not JSON.
        """
        body = self._decoded(self._last)
        if _is_finished(body):
            return body
        meta = body.get("meta_info")
        kept = {} if not isinstance(meta, Mapping) else {k: v for k, v in meta.items() if k not in _VERSIONS}
        return {**body, "meta_info": {**kept, "finish_reason": {"type": "abort", "message": "the server is gone"}}}

    def _ids_of(self, data: bytes) -> object:
        """The ids in an event. All else in it grows with each event too, and is read in the last one only."""
        found = _IDS.search(data)
        try:
            if found is not None:
                return json.loads(data[found.end() - 1 : data.index(b"]", found.end()) + 1])
        except ValueError:
            pass  # they are no list of numbers: as a whole it may tell what it is
        body = self._decoded(data)
        if body.get("error") is not None:
            raise _refusal(body["error"], self._path)
        return body.get("output_ids")

    def _decoded(self, data: bytes) -> Mapping[str, Any]:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise MalformedAnswer("not_json", f"{self._path}: an event is not JSON: {data[:200]!r}") from error
        if not isinstance(body, Mapping):
            raise MalformedAnswer("shape", f"{self._path}: an event has no output_ids: {data[:200]!r}")
        return body


def _is_finished(body: Mapping[str, Any]) -> bool:
    meta = body.get("meta_info")
    return isinstance(meta, Mapping) and meta.get("finish_reason") is not None


def _refusal(error: object, path: str) -> ServerError:
    status = error.get("code") if isinstance(error, Mapping) else None
    message = f"{path}: {str(error)[:200]}"
    if status in BUSY:
        return ServerBusy(message)
    return ServerUnavailable(message) if isinstance(status, int) and status >= 500 else RequestRefused(message)
