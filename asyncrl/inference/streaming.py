"""An answer that comes in pieces: what is new in each is given on as it comes, and the last is checked as any answer.

Each event holds the whole answer so far, as SGLang's do unless it was started with --incremental-streaming-output, and
only the last one says which versions of the weights sampled it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.errors import ServerError
from asyncrl.inference.errors import BUSY, MalformedAnswer, RequestRefused, ServerBusy, ServerUnavailable

DONE = b"[DONE]"


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
        self._last: Mapping[str, Any] | None = None

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
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise MalformedAnswer("not_json", f"{self._path}: an event is not JSON: {data[:200]!r}") from error
        if isinstance(body, Mapping) and body.get("error") is not None:
            raise _refusal(body["error"], self._path)
        ids = body.get("output_ids") if isinstance(body, Mapping) else None
        if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
            raise MalformedAnswer("shape", f"{self._path}: an event has no output_ids: {data[:200]!r}")
        if ids[: len(self._shown)] != self._shown:
            raise MalformedAnswer(
                "shape",
                f"{self._path}: an event has {len(ids)} ids, and not the {len(self._shown)} of before as its "
                "beginning. Start the server without --incremental-streaming-output.",
            )
        self._last, new = body, ids[len(self._shown) :]
        if new:
            self._shown = ids
            self._watch.show(new)

    def whole(self) -> Mapping[str, Any]:
        """The answer, once the stream has ended.

        Raises:
            MalformedAnswer: it ended before the answer did.
        """
        if self._last is None or self._last.get("meta_info", {}).get("finish_reason") is None:
            raise MalformedAnswer("missing_field", f"{self._path}: the stream ended before its answer did.")
        return self._last

    def so_far(self) -> Mapping[str, Any]:
        """The answer as far as it came, if its server is gone: as one that was cut, under no version that it named,
        unless it is whole.

        What was shown cannot be sampled anew, since whoever saw it would see two beginnings.
        """
        assert self._last is not None
        if self._last["meta_info"].get("finish_reason") is not None:
            return self._last
        kept = {name: value for name, value in self._last["meta_info"].items() if not name.startswith("weight_version")}
        return {
            **self._last,
            "meta_info": {**kept, "finish_reason": {"type": "abort", "message": "the server is gone"}},
        }


def _refusal(error: object, path: str) -> ServerError:
    status = error.get("code") if isinstance(error, Mapping) else None
    message = f"{path}: {str(error)[:200]}"
    if status in BUSY:
        return ServerBusy(message)
    return ServerUnavailable(message) if isinstance(status, int) and status >= 500 else RequestRefused(message)
