"""Every Redis key of the buffer, and the names of payloads.

All keys of a run's ledger carry the hash tag {run}, so that one script may touch them all. Payload keys carry none:
a Redis Cluster spreads them, and no script touches one. `payload:` keys live in Redis, `spilled:` keys name a file
of payload.home.
"""

import re
import secrets

from buffer.errors import BufferError

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_EVALUATION = ".eval."
# The attempt is followed by eight digits where something was parked. Keys are read back from the server: a foreign one
# must not stop a sweep, nor lead a path out of its directory.
_PAYLOAD = re.compile(
    r"(payload|spilled):(?P<run>[A-Za-z0-9][A-Za-z0-9._-]{0,299}):"
    r"(?P<ordinal>[0-9]{1,16})\.[0-9]{1,16}(\.[0-9a-f]{8})?:(?P<token>(draft-)?[0-9a-f]{1,64})"
)

LEDGER_KEYS = (
    "run",
    "cards",
    "claims",
    "open",
    "in_flight",
    "sampling",
    "waiting",
    "ready",
    "leased",
    "taken",
    "dead",
    "dead_kept",
    "consumed",
    "filtered",
    "discarded",
    "trash",
    "reasons",
    "forks",
    "commons",
    "hints",
    "reports",
    "tokens",
    "draws",
    "pass_rates",
)
"""HASHES: cards from ordinal to msgpack, claims from token to ordinal, draws from ordinal and pass_rates from prompt to
text. SETS. hints: a capped stream. The others are
sorted sets of ordinals; score of in_flight: deadline ms; sampling and ready: effective number; leased: step; dead and
dead_kept: ms; else the ordinal itself."""

HASHES = ("run", "cards", "claims", "reasons", "forks", "commons", "reports", "tokens", "draws", "pass_rates")
SETS = ("taken", "trash")

AUDIT_KEYS = tuple(key for key in LEDGER_KEYS if key not in ("hints", "reports"))
"""What an audit reads, in this order."""


def check_run(run: str) -> str:
    """`run`, if it can stand in a key and in a path.

    Raises:
        BufferError: it cannot.
    """
    if not _RUN.fullmatch(run):
        raise BufferError(
            f"run.name = {run!r} must be 1 to 200 letters, digits, '.', '_' or '-', and begin with a letter or a "
            "digit: it "
            "becomes part of Redis keys and of paths."
        )
    return run


def ledger_key(run: str, name: str) -> str:
    """The key of one part of a run's ledger."""
    return f"{{{run}}}:{name}"


def member(ordinal: int) -> str:
    """How an ordinal is written in sets and hashes: padded, so that equal scores are ordered by ordinal."""
    return f"{ordinal:012d}"


def payload_key(run: str, gid: str, token: str, *, spilled: bool) -> str:
    """The key of one payload. It ends in its writer's token, so that nothing is ever overwritten."""
    return f"{'spilled' if spilled else 'payload'}:{run}:{gid}:{token}"


def parked_key(run: str, gid: str, token: str, *, spilled: bool) -> str:
    """The key of what a worker parks, new for each time: what was parked before stays whole until it is replaced."""
    return payload_key(run, f"{gid}.{secrets.token_hex(4)}", token, spilled=spilled)


def parse_payload_key(key: str) -> tuple[str, int, str] | None:
    """(run, ordinal, token) of a payload key; None if it is not one."""
    match = _PAYLOAD.fullmatch(key)
    return (match["run"], int(match["ordinal"]), match["token"]) if match else None


def evaluation_run(run: str, label: str) -> str:
    """The ledger of an evaluation of the version with this label."""
    return f"{run}{_EVALUATION}{label}"


def owns(run: str, other: str) -> bool:
    """Whether `other` is this run or one of its evaluations."""
    return other == run or other.startswith(run + _EVALUATION)
