"""The weights model as a whole: its moves, its symmetry, what must hold, and what counts as progress."""

from collections.abc import Iterator

from tests.models.explorer import Move, Step
from tests.models.weights.servers import server_moves
from tests.models.weights.state import (
    DELTA,
    ORIGIN,
    TRAIN,
    Body,
    Checkpoint,
    Record,
    Server,
    Setting,
    State,
    Trainer,
    anchor_key,
    anchor_place,
    is_valid,
    place_of,
)
from tests.models.weights.trainer import trainer_moves


def _fresh(setting: Setting) -> State:
    log = (Record(ORIGIN, ORIGIN, None, has_anchor=True),)
    parts = ((anchor_key(ORIGIN), Body(None, ORIGIN)),)
    servers = (Server(acked=ORIGIN),) * setting.servers
    return State(log, parts, 0, None, Trainer(), None, Checkpoint(), servers, setting.faults)


def _running(setting: Setting) -> State:
    version, fresh = (1, 0), _fresh(setting)
    key = (DELTA, version, ORIGIN if setting.rules.write_once else None)
    log = (*fresh.log, Record(version, ORIGIN, key, has_anchor=False))
    servers = (Server(ORIGIN, version, version, None, version),) * setting.servers
    state = fresh.put_parts(key, Body(ORIGIN, ORIGIN))
    trainer = Trainer(TRAIN, 1, 0, ORIGIN, version, claim=1)
    return state._replace(log=log, owner=1, claims=1, claimed=1, trainer=trainer, servers=servers)


class WeightsModel:
    """See `tests.models.explorer.Model`."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.initial = _fresh(setting) if setting.is_fresh else _running(setting)

    def moves(self, state: State) -> Iterator[Move[State]]:
        """Trainers, servers, Redis, the transport."""
        yield from trainer_moves(self.setting, state)
        yield from server_moves(self.setting, state)
        if state.faults.tails and len(state.log) > 1:
            yield Move(Step("redis", "lose tail"), True, state.spend("tails")._replace(log=state.log[:-1]))
        if state.faults.claims and state.owner > state.head.version[0]:
            owner, claimed = state.before
            lost = state.spend("claims")._replace(owner=owner, claimed=claimed, before=(0, 0))
            yield Move(Step("redis", "lose claim"), True, lost)
        if state.faults.losses:
            for key, _ in state.parts:
                if key != anchor_key(ORIGIN):
                    lost = state.delete_parts({key}).spend("losses")
                    yield Move(Step("transport", "delete", key[1], key[0]), True, lost)

    def canonical(self, state: State) -> State:
        """Servers sorted: which of them is which says nothing."""
        return state._replace(servers=tuple(sorted(state.servers, key=repr))) if len(state.servers) > 1 else state

    def problem(self, state: State) -> str | None:
        """What this state breaks."""
        for server in state.servers:
            place = place_of(self.setting, state, server.acked, exact=True) if is_valid(self.setting, server) else None
            if place is not None and server.bits != state.log[place].bits:
                return f"its acknowledgement says {server.acked}, the server holds {server.bits}"
        parts = dict(state.parts)
        for record in state.log:
            if record.delta in parts and parts[record.delta].bits != record.bits:
                made = parts[record.delta].bits
                return f"the log names {record.version} with bits {record.bits}, its parts make {made}"
        faults = self.setting.faults
        if faults.losses == faults.tails == 0 and anchor_place(state) is None:
            return "no anchor leads to head: a joiner, and the trainer itself, are stranded"
        return None

    def is_goal(self, state: State) -> bool:
        """The last version is trained, and every server serves it."""
        trainer, head = state.trainer, state.head
        if trainer.phase != TRAIN or trainer.number < self.setting.versions or head.bits != trainer.bits:
            return False
        return all(is_valid(self.setting, server) and server.bits == head.bits for server in state.servers)
