"""The servers of a run in Redis: what each start said, its signs of life, what it needs, and what is asked of it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgpack

from weightsync.acks import FORGOTTEN_S, Server, State, Vitals
from weightsync.errors import StaleIncarnation
from weightsync.log import scripts
from weightsync.log.base import Need
from weightsync.log.fleet_views import FleetViews
from weightsync.log.redis_client import answers
from weightsync.orders import Adoption, Order

FLEET = ("servers", "incarnations", "states", "held", "seen", "since", "notes", "vitals")


class RedisFleet(FleetViews):
    """The part of RedisLog that is about servers, and how both run scripts.

    Args:
        client: redis-py's; untyped, as its types are unions of its blocking and its asyncio answers.
        keys: full name of each key by its short one.
    """

    def __init__(self, client: Any, keys: Mapping[str, str]) -> None:
        self._client, self._keys = client, keys
        self._scripts: dict[str, Any] = {}

    def register(self, server: str, incarnation: str, url: str, lease_s: float, *, lent: bool = False) -> None:
        registration = msgpack.packb([url, lease_s, lent])
        forgotten_ms = int(FORGOTTEN_S * 1000)
        self._run(scripts.REGISTER, [*FLEET, "hints"], server, incarnation, registration, "starting", forgotten_ms)

    def put_ack(self, server: str, incarnation: str, version: int, digest: int, state: State) -> None:
        self._say(server, incarnation, state, held=msgpack.packb([version, digest]))

    def put_state(self, server: str, incarnation: str, state: State, reason: str = "") -> None:
        self._say(server, incarnation, state, reason=reason)

    def renew(self, server: str, incarnation: str, vitals: Vitals | None = None) -> None:
        packed = b"" if vitals is None else _packed_vitals(vitals)
        self._say(server, incarnation, "", vitals=packed)

    def leave(self, server: str, incarnation: str) -> None:
        self._run(scripts.LEAVE, [*FLEET, "hints", "needs"], server, incarnation)

    def need(self, server: str, reason: str, failed: str = "") -> None:
        self._run(scripts.NEED, ["needs", "hints"], server, msgpack.packb([reason, failed]))

    def needs(self) -> list[Need]:
        with answers("a read of the needs"):
            seconds, micros = self._client.time()
            held = self._client.hgetall(self._keys["needs"])
        now_ms = seconds * 1000 + micros // 1000
        found = []
        for server, blob in sorted(held.items()):
            reason, failed = msgpack.unpackb(blob[14:])
            found.append(Need(server.decode(), reason, failed, max(0.0, (now_ms - int(blob[:14])) / 1000)))
        return found

    def answered(self, servers: Collection[str]) -> None:
        if servers:
            with answers("answered needs"):
                self._client.hdel(self._keys["needs"], *servers)

    def put_order(self, server: str, order: Order | None, *, obeyed: Order | None = None) -> None:
        old = b"" if obeyed is None else _packed_order(obeyed)
        new = b"" if order is None else _packed_order(order)
        self._run(scripts.ASK, ["orders", "hints"], server, new, old)

    def orders(self) -> dict[str, Order]:
        with answers("a read of the orders"):
            held = self._client.hgetall(self._keys["orders"])
        return {server.decode(): Order(*msgpack.unpackb(blob)) for server, blob in held.items()}

    def put_adoption(self, server: str, adoption: Adoption | None) -> None:
        blob = b"" if adoption is None else msgpack.packb([adoption.url, adoption.machine])
        self._run(scripts.ASK, ["adoptions", "hints"], server, blob, b"")

    def adoptions(self) -> dict[str, Adoption]:
        with answers("a read of the adoptions"):
            held = self._client.hgetall(self._keys["adoptions"])
        return {server.decode(): Adoption(*msgpack.unpackb(blob)) for server, blob in held.items()}

    def _say(
        self,
        server: str,
        incarnation: str,
        state: str,
        *,
        held: bytes = b"",
        reason: str = "",
        vitals: bytes = b"",
    ) -> None:
        answer = self._run(scripts.SAY, [*FLEET, "hints"], server, incarnation, state, held, reason, vitals)
        if answer[0] == b"stale":
            raise StaleIncarnation(
                f"server {server} is registered as {answer[1].decode() or 'nobody'}, this host speaks for "
                f"{incarnation}: a newer start took over. This host must stop."
            )

    def _fleet(self) -> dict[str, tuple[Server, tuple[int, int] | None]]:
        now_ms, *hashes = self._run(scripts.SERVERS, list(FLEET))
        servers, incarnations, states, held, seen, since, notes, vitals = (_pairs(flat) for flat in hashes)
        found = {}
        for name, blob in servers.items():
            url, lease_s, *lent = msgpack.unpackb(blob)  # a host from before the last was added says two
            state: Any = states[name].decode()  # our own word
            server = Server(
                incarnations[name].decode(),
                url,
                state,
                _seconds(now_ms, seen[name]),
                lease_s,
                any(lent),
                notes.get(name, b"").decode(),
                _seconds(now_ms, since.get(name, seen[name])),
                Vitals(*msgpack.unpackb(vitals[name])) if name in vitals else Vitals(),
            )
            holds = msgpack.unpackb(held[name]) if name in held else None
            found[name.decode()] = (server, None if holds is None else (holds[0], holds[1]))
        return found

    def _run(self, script: str, keys: Sequence[str], *arguments: object) -> Any:
        if script not in self._scripts:
            self._scripts[script] = self._client.register_script(script)
        with answers(f"a script of the log ({', '.join(keys)})"):
            return self._scripts[script](keys=[self._keys[key] for key in keys], args=list(arguments))


def _packed_vitals(vitals: Vitals) -> bytes:
    packed: bytes = msgpack.packb([vitals.num_running, vitals.num_waiting, vitals.num_restarts])
    return packed


def _packed_order(order: Order) -> bytes:
    packed: bytes = msgpack.packb([order.kind, float(order.within_s), order.nonce])
    return packed


def _seconds(now_ms: int, then_ms: bytes) -> float:
    return max(0.0, (now_ms - int(then_ms)) / 1000)


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
