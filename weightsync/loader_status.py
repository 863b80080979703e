"""What the loader answers: a code, the version and digest that are held, and the reason in words."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from weightsync.errors import TransportFull
from weightsync.ticket import put_json
from weightsync.versions import label

STATUS = "@weightsync"
"""The name under which a model's `get_weights_by_name` gives the status."""

UNKNOWN = (1 << 64) - 1
"""The version of weights that are of none."""

(APPLIED, WRONG_BASE, ALREADY, BAD_TICKET, BAD_PART, BAD_LAYOUT, BASE_DIGEST, RESULT_DIGEST, FAILED, DIRTY) = range(10)

CODES = MappingProxyType(
    {
        APPLIED: "applied, and the digest is the published one",
        WRONG_BASE: "the delta's base is not the version held; nothing was written",
        ALREADY: "the version is held already; nothing was written",
        BAD_TICKET: "the ticket, its layout or its plan cannot be read; nothing was written",
        BAD_PART: "a part is damaged; every word is as it was",
        BAD_LAYOUT: "the engine does not hold every tensor of the model; nothing was written",
        BASE_DIGEST: "the weights held are not the base's; nothing was written, an anchor is needed",
        RESULT_DIGEST: "the result would not be the published one; every word is as it was",
        FAILED: "an unexpected error; every word is as it was",
        DIRTY: "an error while writing: the weights are of no version, an anchor is needed",
    }
)

logger = logging.getLogger(__name__)


class Refused(Exception):
    """A ticket is not applied; the code says why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason


def status(code: int, version: int | None, digest: int | None, changed: int) -> list[int]:
    """[code, branch, number, upper 32 bits of the digest, lower 32 bits, words changed]."""
    return [code, *_halves(UNKNOWN if version is None else version), *_halves(digest or 0), changed]


# Any: SGLang passes the model of whatever class, and its method answers what it likes.
def install(model: Any, answers: Mapping[str, Callable[[], list[int]]]) -> None:
    """Answer for these names; others go to the model's own method, if it has one."""
    own = getattr(model, "get_weights_by_name", None)

    def read(name: str, truncate_size: int = 100, tp_size: int = 1) -> Any:
        if name in answers:
            return list(answers[name]())
        if own is None:
            raise AttributeError("get_weights_by_name")
        return own(name, truncate_size, tp_size=tp_size)

    model.get_weights_by_name = read


def leave_note(directory: Path, rank: int, code: int, reason: str, version: int | None) -> None:
    """The status in words, beside the ticket; that it cannot be written is told and no failure."""
    note = {"code": code, "meaning": CODES[code], "reason": reason, "version": label(version)}
    try:
        put_json(directory / f"status-{rank}.json", note)
    except (OSError, TransportFull) as error:
        logger.warning("weightsync: the status could not be written: %s", error)


def _halves(value: int) -> tuple[int, int]:
    return value >> 32, value & 0xFFFFFFFF
