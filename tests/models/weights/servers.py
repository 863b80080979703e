"""What engines and their hosts do in the weights model: stage, activate, acknowledge, ask the engine, start again."""

from collections.abc import Iterator

from tests.models.explorer import Move, Step, Violation
from tests.models.weights.state import (
    Server,
    Setting,
    Staged,
    State,
    anchor_key,
    next_place,
)


def server_moves(setting: Setting, state: State) -> Iterator[Move[State]]:
    """Moves of every server."""
    for place, server in enumerate(state.servers):
        if server.staged is None:
            yield from _stages(setting, state, place, server)
        else:
            yield from _activates(setting, state, place, server, server.staged)
        yield from _speaks(setting, state, place, server)
        if state.faults.servers:
            restarted = Server(
                staged=server.staged,
                acked=server.acked,
                acked_by=server.acked_by,
                incarnation=server.incarnation + 1,
            )
            yield Move(_step(place, "register"), True, _with(state.spend("servers"), place, restarted))


def _step(place: int, word: str, about: tuple[int, ...] = (), how: str = "") -> Step:
    return Step(f"server {place}", word, about, how)


def _with(state: State, place: int, server: Server) -> State:
    return state._replace(servers=(*state.servers[:place], server, *state.servers[place + 1 :]))


def _stages(setting: Setting, state: State, place: int, server: Server) -> Iterator[Move[State]]:
    following = next_place(setting, state, server)
    if following is None:
        return
    at, is_whole = following
    record, parts = state.log[at], dict(state.parts)
    assert is_whole or record.delta is not None, "a path has deltas with parts"
    body = parts[anchor_key(record.version) if is_whole or record.delta is None else record.delta]
    step = _step(place, "stage", record.version, "whole" if is_whole else "")
    if body.bits != record.bits:
        text = f"the log names {record.version} with bits {record.bits}, its parts make {body.bits}"
        yield Move(step, False, Violation(text))
        return
    staged = Staged(record.version, None if is_whole else state.log[at - 1].version, body)
    yield Move(step, False, _with(state, place, server._replace(staged=staged)))


def _activates(setting: Setting, state: State, place: int, server: Server, staged: Staged) -> Iterator[Move[State]]:
    step = _step(place, "activate", staged.version)
    if staged.base is not None and not _is_base(setting, server, staged.base) and setting.rules.engine_base:
        # The host does not know what it has: the engine will tell it, or an anchor will do.
        host = None if server.host != server.engine else server.engine
        refused = server._replace(host=host, staged=None, acked=None)
        yield Move(step._replace(how="refused by the engine"), False, _with(state, place, refused))
        return
    if staged.body.base is not None and staged.body.base != server.bits:
        text = f"a delta {staged.body.base} -> {staged.body.bits} is added to {server.bits}: garbage"
        yield Move(step, False, Violation(text))
        return
    acked = None if setting.rules.withdraw else server.acked
    active = server._replace(
        bits=staged.body.bits, engine=staged.version, host=staged.version, staged=None, acked=acked
    )
    yield Move(step, False, _with(state, place, active))
    if state.faults.hosts:
        orphan = active._replace(host=server.host)
        yield Move(step._replace(how="its host dies"), True, _with(state.spend("hosts"), place, orphan))
    if state.faults.servers:
        restarted = Server(acked=acked, acked_by=server.acked_by, incarnation=server.incarnation + 1)
        yield Move(step._replace(how="it dies"), True, _with(state.spend("servers"), place, restarted))


def _is_base(setting: Setting, server: Server, base: tuple[int, int]) -> bool:
    if setting.rules.tree_names:
        return base == server.engine
    return server.engine is not None and base[1] == server.engine[1]


def _speaks(setting: Setting, state: State, place: int, server: Server) -> Iterator[Move[State]]:
    if server.host != server.engine and server.staged is None:
        asked = server._replace(host=server.engine)
        yield Move(_step(place, "ask engine"), False, _with(state, place, asked))
    host = server.host
    is_news = (server.acked, server.acked_by) != (host, server.incarnation)
    if host is not None and is_news and (host == server.engine or not setting.rules.ask_engine):
        acked = server._replace(acked=host, acked_by=server.incarnation)
        yield Move(_step(place, "put_ack", host), False, _with(state, place, acked))
