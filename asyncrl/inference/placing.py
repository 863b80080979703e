"""Place the tokens of an answer in versions, and each version in the digest that a server acknowledged for it."""

from asyncrl import waits
from asyncrl.inference.board import Board
from asyncrl.inference.errors import MalformedAnswer
from asyncrl.inference.protocol import Answer
from buffer import Span
from buffer.versions import label, parse_label
from weightsync.acks import Ack


class Placing:
    """What a fleet knows of versions and their digests."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._digests: dict[int, int] = {}

    def acknowledged(self, ack: Ack) -> None:
        """Remember what a server said."""
        self._digests[ack.version] = ack.digest

    async def spans(self, answer: Answer, ack: Ack, server: str) -> tuple[Span, ...]:
        """The versions of an answer's tokens, in their order.

        Args:
            ack: what the server had acknowledged when it was asked.
            server: its name, for messages.
        Raises:
            MalformedAnswer: its version is nobody's.
        """
        if not answer.token_ids:
            return ()
        if answer.one_version:
            # It names only the newest version, or none; what it had confirmed before is the oldest that a token can
            # have. Unless it is behind its own word: another life may answer at the address of one that died.
            named = answer.runs[0].label
            version = min(ack.version, _version(named, ack, server)) if named else ack.version
            return (Span(version, await self._digest(version, server), len(answer.token_ids)),)
        spans = []
        for run in answer.runs:
            version = _version(run.label, ack, server)
            spans.append(Span(version, await self._digest(version, server), run.num_tokens))
        return tuple(spans)

    async def _digest(self, version: int, server: str) -> int:
        digest = self._digests.get(version)
        if digest is None:  # activated and answered before its ack reached us
            digest = await waits.in_thread(self._board.digest_of, version)
        if digest is None:
            raise MalformedAnswer(
                "unknown_version",
                f"{server} answered under weight version {label(version)}, which neither the log nor a server "
                "knows; the trainer would refuse its tokens. The answer is dropped.",
            )
        self._digests[version] = digest
        return digest


def _version(text: str, ack: Ack, server: str) -> int:
    try:
        return parse_label(text)
    except ValueError as error:
        if ack.version == 0:
            return 0  # a server that has only ever had its model directory need not know our labels
        raise MalformedAnswer(
            "unknown_version",
            f"{server} answered under weight version {text!r}, but it acknowledged {label(ack.version)}: it "
            "was restarted or changed behind its host, so nobody knows the weights. The answer is dropped.",
        ) from error
