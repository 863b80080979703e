"""What the model reads for a request: the tokens of the row that it goes on from, and the new messages behind them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asyncrl.data.template import TemplateRefused
from asyncrl.data.values import Json
from asyncrl.errors import DataError
from asyncrl.rollout.episode import Chat
from asyncrl.rollout.gateway.conversation import ProtocolError, TurnRequest
from asyncrl.rollout.gateway.forks import Origin, origin_of
from asyncrl.rollout.gateway.messages import MessageKey, for_template, keys_of
from asyncrl.rollout.gateway.session import PlannedTurn, Session, ended_already
from asyncrl.rollout.gateway.session_row import AnswerEnd, SessionRow


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is read behind the row that it makes longer; None: it begins one, for the reason `kind`."""

    kind: str
    base: SessionRow | None
    ends: tuple[AnswerEnd, ...]
    token_ids: list[int]

    @property
    def num_tokens(self) -> int:
        """Tokens that are read, those of the row included."""
        return len(self.token_ids) + (0 if self.base is None else len(self.base.row.token_ids))


class TurnPlanner:
    """Plans turns. `counts` gets rows that were begun, by why.

    Args:
        context_length: most tokens of a row, answers included.
        max_rows: most rows of a session.
    """

    def __init__(self, chat: Chat, counts: Counter[str], *, context_length: int, max_rows: int) -> None:
        self._chat, self._counts = chat, counts
        self._context_length, self._max_rows = context_length, max_rows

    def plan(self, session: Session, request: TurnRequest) -> PlannedTurn:
        """Begin a turn of a session; whoever asked ends it by `finish` or `drop`.

        Raises:
            ProtocolError: the session has ended or has too many rows, or the messages cannot be read by the model.
        """
        if session.ended.done():
            raise ended_already()
        keys = keys_of(request.messages, request.tools)
        reading = self._reading(session, request, keys)
        if reading.num_tokens >= self._context_length:
            raise ProtocolError(
                400,
                "invalid_request",
                f"prompt is too long: {reading.num_tokens} tokens >= {self._context_length} maximum "
                "(inference.context_length, answer included). Shorten or compact the conversation.",
            )
        if reading.base is None:
            self._check_rows(session)
            if reading.kind != "first":
                session.forks[reading.kind] += 1
                self._counts[f"rows_{reading.kind}"] += 1
        return session.begin(reading.base, keys, reading.ends, reading.token_ids)

    def num_tokens(self, session: Session, request: TurnRequest) -> int:
        """Tokens that the model would read. Raises ProtocolError if it cannot read the messages."""
        return self._reading(session, request, keys_of(request.messages, request.tools)).num_tokens

    def _reading(self, session: Session, request: TurnRequest, keys: tuple[MessageKey, ...]) -> _Reading:
        if request.messages[-1].get("role") == "assistant":
            raise ProtocolError(
                400,
                "invalid_request",
                "The last message is the assistant's: an answer cannot be begun for the model, since only what it "
                "sampled itself can be trained on. End with a message of another role.",
            )
        origin = origin_of(keys, session.rows, session.busy)
        appended = self._appended(request, origin)
        if appended is not None:
            return appended
        # One that goes on from a row is rendered as a whole because the template could not.
        kind = origin.kind if origin.row is None else "rewritten"
        return _Reading(kind, None, (), self._rendered(request.messages, request.tools))

    def _appended(self, request: TurnRequest, origin: Origin) -> _Reading | None:
        """What is read behind an answer of a row; None: there is none, or the template cannot go on after it."""
        row, end = origin.row, origin.end
        if row is None:
            return None
        last_id = int(row.row.token_ids[end.num_tokens - 1])
        try:
            added = self._chat.continuation(for_template(request.messages, end.num_keys - 1), last_id, request.tools)
        except TemplateRefused:
            self._counts["rows_not_appendable"] += 1
            return None
        if origin.kind == "continued":
            return _Reading(origin.kind, row, row.ends, added)
        shared = row.row.token_ids[: end.num_tokens].tolist()
        return _Reading(origin.kind, None, row.ends[: row.ends.index(end) + 1], shared + added)

    def _rendered(self, messages: Sequence[Mapping[str, Json]], tools: Sequence[Mapping[str, Json]]) -> list[int]:
        try:
            return list(self._chat.render(for_template(messages), tools))
        except DataError as error:
            raise ProtocolError(400, "invalid_request", str(error)) from error

    def _check_rows(self, session: Session) -> None:
        if session.num_rows >= self._max_rows:
            raise ProtocolError(
                400,
                "invalid_request",
                f"The session has {self._max_rows} rows (gateway.max_rows): its conversation was changed or begun anew "
                "so often. End it, or let the harness append to what was said.",
            )
