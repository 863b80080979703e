"""What the scripts are given and what they answer, between Lua's lists and the dataclasses of the store."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgpack

from buffer.books import CLOSED, DAMAGED, DEAD, NO_INDEX, WAITING, Books, Card, Index, Spent
from buffer.draws import Draw, PassRate, Result
from buffer.errors import BufferError
from buffer.json_safe import integer, number, text
from buffer.keys import AUDIT_KEYS, HASHES, SETS
from buffer.lineage import Ledger
from buffer.store import RECORD_NUMBERS, Batch, Done, Granted, Left, Refused, Swept, Taken

Reply = Any  # nested lists of integers and bytes: the scripts are the schema, the property tests its check

# As in books.lua, in this order.
_FIELDS = (
    *("state", "attempt", "failures", "stales", "excused", "poison", "token", "worker", "since_ms"),
    *("oldest_branch", "oldest_number", "num_sampled", "key", "num_bytes", "ranges", "info", "parked"),
    *("reason", "error"),
)

_CARD_NUMBERS = ("attempt", "failures", "stales", "excused", "poison", "since_ms", "num_sampled")

_SHOWN = ("branch", "trained", "limit", "per_version", "num_stops")
_HIDDEN = (
    *("window", "end", "watermark", "next_ordinal", "next_position", "resident_bytes", "dead_bytes"),
    *("hold_step", "hold_since_ms"),
)
_NUMBERS = (*_SHOWN, *_HIDDEN, "swept_ms")
_BOOKKEEPING = {*_HIDDEN, "swept_ms", "nonce", "run_id", *(f"below_{kind}" for kind in CLOSED)}


def ranges_blob(index: Index) -> bytes:
    """The version ranges as Lua reads them: a flat list of branch, lowest, highest number."""
    return bytes(msgpack.packb([part for one in index.ranges for part in one]))


def info_blob(index: Index) -> bytes:
    """What Lua keeps of an index without reading it."""
    return bytes(msgpack.packb([index.xxh3, index.tokens, index.sampled, index.rewards, index.data_source]))


def spent_parts(spent: Spent) -> tuple[str, int, int]:
    """Tokens as arguments of a script."""
    return spent.source, spent.trajectories, spent.tokens


def draw_parts(offered: Sequence[Draw]) -> list[str | int]:
    """Draws as arguments of reserve.lua."""
    return [part for draw in offered for part in (draw.position, draw.prompt, draw.reason)]


def result_parts(result: Result) -> tuple[int, int, int]:
    """A result as arguments of a script."""
    return result.prompt, result.passed, result.scored


def whole(name: str, key: str) -> tuple[str | int, ...]:
    """The command that reads all of one part of the ledger."""
    if name in HASHES:
        return ("HGETALL", key)
    return ("SMEMBERS", key) if name in SETS else ("ZRANGE", key, 0, -1, "WITHSCORES")


def status_of(reply: Reply) -> tuple[str, tuple[str, ...]]:
    """The answer of a worker's script: what became of the ordinal, and payloads for the caller to unlink."""
    status, *trash = reply
    return status.decode(), tuple(key.decode() for key in trash)


def ledger_blob(ledger: Ledger) -> bytes:
    """The ledger of a checkpoint as Lua reads it."""
    data = {**ledger.to_json(), "forks": [[branch, *fork] for branch, fork in ledger.forks.items()]}
    return bytes(msgpack.packb(data))


def record_of(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    """The run record as the store answers it: what was registered, the flags, the trainer's numbers."""
    stored = {name.decode(): value.decode() for name, value in fields.items()}
    shown = {name: value for name, value in stored.items() if name not in _BOOKKEEPING}
    return {"evaluation": "", **dict.fromkeys(RECORD_NUMBERS, "0"), **shown}


def granted_of(reply: Reply) -> Granted | Refused:
    """The answer of reserve.lua."""
    if reply[0] == b"granted":
        _, ordinal, attempt, ahead, taken, branch, trained, limit, per_version, parked, draw, *commons = reply
        known = dict(_tuples(commons, 2))
        drawn = Draw.from_text(draw) if draw else None
        head = (ordinal, attempt, ahead, taken, branch, trained, limit, per_version)
        return Granted(*head, known, *_parked_of(parked), drawn)
    _, reason, ahead, taken, window, num_bytes, hint, next_position = reply
    return Refused(reason.decode(), ahead, taken, window, num_bytes, hint.decode(), next_position)


def rates_of(reply: Reply) -> tuple[PassRate | None, ...]:
    """The answer of pass_rates.lua."""
    return tuple(PassRate.from_text(text) if text else None for text in reply)


def batch_of(reply: Reply) -> Batch:
    """The answer of lease.lua."""
    status, branch, trained, now_ms, *rest = reply
    if not rest:
        return Batch(status.decode(), branch, trained, now_ms)
    taken, left, held_by, ready, in_flight, waiting, refused, hint, trash = rest
    return Batch(
        status=status.decode(),
        branch=branch,
        trained=trained,
        now_ms=now_ms,
        taken=tuple(Taken(o, effective, card_of(raw)) for o, effective, raw in _tuples(taken, 3)),
        left=tuple(
            Left(o, (card := card_of(raw)).attempt, effective, outcome.decode(), card.index)
            for o, effective, outcome, raw in _tuples(left, 4)
        ),
        held_by=tuple((o, age, worker.decode()) for o, age, worker in _tuples(held_by, 3)),
        num_ready=ready,
        num_in_flight=in_flight,
        num_waiting=waiting,
        bytes_refused=refused == 1,
        last_hint=hint.decode(),
        trash=tuple(key.decode() for key in trash),
    )


def done_of(reply: Reply) -> Done:
    """The answer of the trainer's other scripts."""
    status, branch, trained, evaluation, *trash = reply
    return Done(status.decode(), branch, trained, tuple(key.decode() for key in trash), evaluation.decode())


def swept_of(reply: Reply) -> Swept:
    """The answer of sweep.lua."""
    expired, dead, guarded, excused, trash = reply
    return Swept(tuple(expired), tuple(dead), guarded == 1, excused == 1, tuple(key.decode() for key in trash))


def card_of(raw: bytes) -> Card:
    """A card as books.lua packs it: its FIELDS, in order."""
    try:
        return _card_of(dict(zip(_FIELDS, msgpack.unpackb(raw, raw=True), strict=True)))
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise BufferError(
            f"the ledger holds a card that no version of asyncrl writes: {type(error).__name__}: {f'{error}'[:200]}. "
            "Something else has written under this run's keys; resume the trainer on a new run name, or on a copy of "
            "the server's data from before."
        ) from error


def _card_of(values: dict[str, Any]) -> Card:
    texts = {name: values[name].decode() for name in ("state", "token", "worker", "key", "reason", "error")}
    numbers = {name: values[name] for name in _CARD_NUMBERS}
    index = _index_of(values["num_bytes"], values["ranges"], values["info"]) if texts["key"] else NO_INDEX
    parked_key, parked = _parked_of(values["parked"])
    oldest = (values["oldest_branch"], values["oldest_number"])
    return Card(
        **texts,
        **numbers,
        index=index,
        parked_key=parked_key,
        parked=parked,
        oldest=None if oldest[0] < 0 else oldest,
    )


def _index_of(num_bytes: int, ranges: bytes, info: bytes) -> Index:
    """The index as its worker wrote it: Lua keeps it unread, so here is where another build's or a damaged one shows.

    Then the group has an index that no payload fits: fetch calls it corrupt, and it is made again.
    """
    try:
        xxh3, tokens, sampled, rewards, source = msgpack.unpackb(info)
        flat = _integers("a version of an index", msgpack.unpackb(ranges))
        return Index(
            num_bytes=num_bytes,
            xxh3=text("xxh3 of an index", xxh3),
            ranges=tuple(_tuples(flat, 3)),
            tokens=tuple(_integers("tokens of an index", tokens)),
            sampled=tuple(_integers("sampled of an index", sampled)),
            rewards=tuple([None if r is None else number("reward of an index", r) for r in rewards]),
            data_source=text("data source of an index", source),
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        return replace(NO_INDEX, num_bytes=num_bytes, xxh3=f"{DAMAGED}its index is damaged: {f'{error}'[:200]}")


def _integers(name: str, values: list[Any]) -> list[int]:
    # Seldom anything else: one look at all types costs a tenth of a call for each.
    return values if type(values) is list and {*map(type, values)} <= {int} else [integer(name, n) for n in values]


def _parked_of(raw: bytes) -> tuple[str, Index]:
    if not raw:
        return "", NO_INDEX
    key, num_bytes, ranges, info = msgpack.unpackb(raw, raw=True)
    return key.decode(), _index_of(num_bytes, ranges, info)


def books_of(reply: Reply) -> Books:
    """The contents of keys.AUDIT_KEYS, in that order: hashes as field, value, ...; sorted sets as member, score, ..."""
    found = dict(zip(AUDIT_KEYS, reply, strict=True))
    run = {name.decode(): value.decode() for name, value in _tuples(found["run"], 2)}
    books = Books(
        record={k: v for k, v in run.items() if k not in (*_BOOKKEEPING, *RECORD_NUMBERS, "evaluation")},
        below={kind: int(run.get(f"below_{kind}", 0)) for kind in CLOSED},
        cards={int(o): card_of(raw) for o, raw in _tuples(found["cards"], 2)},
        claims={token.decode(): int(o) for token, o in _tuples(found["claims"], 2)},
        open=set(_scores(found["open"])),
        in_flight=_scores(found["in_flight"]),
        sampling=_scores(found["sampling"]),
        waiting=set(_scores(found["waiting"])),
        ready=_scores(found["ready"]),
        leased=_scores(found["leased"]),
        taken={int(o) for o in found["taken"]},
        dead=_scores(found["dead"]),
        dead_kept=_scores(found["dead_kept"]),
        closed={kind: set(_scores(found[kind])) for kind in CLOSED},
        trash={key.decode() for key in found["trash"]},
        reasons={reason.decode(): int(count) for reason, count in _tuples(found["reasons"], 2)},
        forks={int(branch): _fork(at) for branch, at in _tuples(found["forks"], 2)},
        commons={int(branch): int(number) for branch, number in _tuples(found["commons"], 2)},
        draws={int(o): Draw.from_text(text) for o, text in _tuples(found["draws"], 2)},
        pass_rates={int(prompt): PassRate.from_text(text) for prompt, text in _tuples(found["pass_rates"], 2)},
    )
    _read_tokens(books, {field.decode(): int(number) for field, number in _tuples(found["tokens"], 2)})
    for name in ("nonce", "evaluation"):
        setattr(books, name, run.get(name, ""))
    for name in ("paused", "stopped"):
        setattr(books, name, run.get(name) == "1")
    for name in _NUMBERS:
        setattr(books, name, int(run.get(name, getattr(books, name))))
    return books


def outline_of(reply: Reply) -> Books:
    """The answer of lineage.lua; of what is not leased it says no more than its state."""
    books = books_of(reply)
    books.cards = {o: Card(WAITING) for o in books.open} | {o: Card(DEAD) for o in books.dead} | books.cards
    return books


def _read_tokens(books: Books, fields: Mapping[str, int]) -> None:
    """The fields of lua/shared/tokens.lua."""
    books.sampled = fields.get("sampled", 0)
    for field, value in fields.items():
        kind, _, rest = field.partition("|")
        name, _, source = rest.partition("|")
        if kind == "m":
            books.masked[rest] = value
        elif kind == "n":
            books.fates[name, source] = (value, fields[f"t|{rest}"])
        elif kind == "en":
            books.evaluated[name, source] = (value, fields[f"et|{rest}"])


def _tuples(flat: Sequence[Any], size: int) -> Iterator[Any]:
    return zip(*[iter(flat)] * size, strict=True)


def _scores(flat: Sequence[bytes]) -> dict[int, int]:
    return {int(o): int(float(score)) for o, score in _tuples(flat, 2)}


def _fork(text: bytes) -> tuple[int, int]:
    parent, number = text.decode().split(":")
    return int(parent), int(number)
