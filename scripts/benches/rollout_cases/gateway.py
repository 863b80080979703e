"""What the gateway adds to an engine's own time, with a thousand stateful sessions: latency, memory, mixed-up sessions.

Three processes: a fast fake engine at a stated speed, the gateway, and this one, which is all the harnesses. Requests
are chat completions, open loop: latency counts from when a request was due. Overhead is that less the engine's stated
time for the answer's tokens, so what the engine and this process are late by counts against the gateway. How much that
is, is measured beside it: the same load straight at the engine.
"""

import asyncio
import gc
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from asyncrl.rollout.chat import ChatTemplate
from scripts.benches.rollout_cases.gateway_load import (
    OBSERVATION,
    SIGN,
    EngineClient,
    Harness,
    Load,
    Outcome,
    drive,
    percentile,
)
from tests.support import fast_engine
from tests.support.fast_engine import running_engine
from tests.support.gateway_process import RunningGateway, Settings, make_model, running_gateway

Figures = dict[str, float]
MARK = re.compile(r"s\d+\.\d+")
TOKENS_PER_S = 200.0
AT_ONCE = 20
"""Sessions that are opened at once, before anything is measured."""
SETTINGS = Settings(
    group_size=4,
    gateway=(("max_sessions", 4096),),
    episodes=(("max_new_tokens", 64), ("context_length", 16384)),
)


def measure(
    num_sessions: int = 1000, requests_per_s: float = 200.0, duration_s: float = 30.0, warm_up_s: float = 3.0
) -> Figures:
    """Figures of one run.

    Returns:
        `gateway_p99_ms_1000` and `gateway_p50_ms_1000`: overhead in milliseconds; `gateway_control_p99_ms` and
        `_p50_ms`: the same without a gateway, in conversations as long; `gateway_kb_per_session`: growth of
        the gateway's resident memory over the load, by session; `gateway_mixed_up`: answers and trajectories that
        are not exactly their session's; `gateway_forks`: rows that were begun anew; `gateway_cpu_ms_per_request`: CPU
        of the gateway; `gateway_skipped`: requests that no session was idle for.
    Raises:
        RuntimeError: a request was refused.
    """
    with tempfile.TemporaryDirectory() as folder:
        speed = replace(make_model(Path(folder)), tokens_per_s=TOKENS_PER_S)
        with running_engine(speed) as engine, running_gateway(engine, Path(folder), SETTINGS) as gateway:
            clients = _engine_clients(engine, Path(folder), speed, num_sessions)
            alone = asyncio.run(_control(clients, Load(requests_per_s, duration_s / 3)))
            return alone | asyncio.run(_measured(gateway, num_sessions, requests_per_s, duration_s, warm_up_s))


async def _control(clients: Sequence[EngineClient], load: Load) -> Figures:
    """The figures of the engine and of this process without a gateway."""
    first = Outcome()
    for begin in range(0, len(clients), AT_ONCE):
        await asyncio.gather(*(client.turn(first) for client in clients[begin : begin + AT_ONCE]))
    outcome = await _driven(clients, load)
    for client in clients:
        await client.close()
    assert not first.num_mixed_up + outcome.num_mixed_up, "the engine answers what it was asked"
    overhead_ms = [1000 * one for one in outcome.overheads_s(TOKENS_PER_S)]
    return {
        "gateway_control_p50_ms": round(percentile(overhead_ms, 0.5), 2),
        "gateway_control_p99_ms": round(percentile(overhead_ms, 0.99), 2),
    }


async def _driven(harnesses: Sequence[Harness], load: Load) -> Outcome:
    """What came of a load, without a stop of this process to look for cycles in a thousand conversations."""
    gc.collect()
    gc.disable()
    try:
        return await drive(harnesses, load)
    finally:
        gc.enable()


async def _measured(
    gateway: RunningGateway, num_sessions: int, requests_per_s: float, duration_s: float, warm_up_s: float
) -> Figures:
    # Imports and first calls cost memory and time that no session has.
    await drive(_harnesses(gateway, "w", 20), Load(requests_per_s / 4, warm_up_s, seed=1))
    before, harnesses, first = gateway.report(), _harnesses(gateway, "s", num_sessions), Outcome()
    for begin in range(0, num_sessions, AT_ONCE):
        await asyncio.gather(*(harness.turn(first) for harness in harnesses[begin : begin + AT_ONCE]))
    cpu_before_s = _cpu_s(gateway.pid)
    outcome = await _driven(harnesses, Load(requests_per_s, duration_s))
    cpu_s, after = _cpu_s(gateway.pid) - cpu_before_s, gateway.report()
    num_foreign = await _foreign(gateway, harnesses)
    overhead_ms = [1000 * one for one in outcome.overheads_s(TOKENS_PER_S)]
    return {
        f"gateway_p50_ms_{num_sessions}": round(percentile(overhead_ms, 0.5), 2),
        f"gateway_p99_ms_{num_sessions}": round(percentile(overhead_ms, 0.99), 2),
        f"gateway_max_ms_{num_sessions}": round(max(overhead_ms), 2),
        "gateway_requests_per_s": round(len(overhead_ms) / duration_s, 1),
        "gateway_cpu_ms_per_request": round(1000 * cpu_s / len(overhead_ms), 3),
        "gateway_kb_per_session": round((after["rss_bytes"] - before["rss_bytes"]) / 1024 / num_sessions, 2),
        "gateway_rss_mb": round(after["rss_bytes"] / 1e6, 1),
        "gateway_mixed_up": first.num_mixed_up + outcome.num_mixed_up + num_foreign,
        "gateway_forks": sum(count for name, count in after["counts"].items() if name.startswith("rows_")),
        "gateway_skipped": outcome.num_skipped,
        "load_max_late_ms": round(1000 * outcome.max_late_s, 2),
    }


def _engine_clients(engine: str, model: Path, speed: fast_engine.Settings, count: int) -> list[EngineClient]:
    """Clients whose turns have as many ids as those of `_harnesses` have."""
    chat, port = ChatTemplate.from_model_dir(model), int(engine.rpartition(":")[2])
    asked = chat.render([{"role": "user", "content": f"{OBSERVATION}{SIGN}"}], add_generation_prompt=False)
    asked = asked[: asked.index(speed.sign_id) + 1]
    marks = [f"e{index}" for index in range(count)]
    return [
        EngineClient(port, mark, asked, chat.encode(f"{mark}.0 goes on with this"), speed.stop_id) for mark in marks
    ]


def _harnesses(gateway: RunningGateway, prefix: str, count: int) -> list[Harness]:
    port = int(gateway.url.rpartition(":")[2])
    return [Harness(port, gateway.key, f"{prefix}{index}") for index in range(count)]


async def _foreign(gateway: RunningGateway, harnesses: Sequence[Harness]) -> int:
    """End every session; how many of their trajectories are not exactly what their harness was answered."""
    for harness in harnesses:
        status, body = await harness.post(f"/sessions/{harness.mark}/end", {"reward": 1.0})
        assert status == 200, body
        await harness.close()
    found: list[dict[str, Any]] = []
    deadline_s = asyncio.get_running_loop().time() + 60
    while len(found) < len(harnesses):
        assert asyncio.get_running_loop().time() < deadline_s, f"{len(found)} of {len(harnesses)} trajectories came"
        found += gateway.report()["trajectories"]
        await asyncio.sleep(0.1)
    expected = {harness.mark: "".join(map(_sampled, harness.answers())) for harness in harnesses}
    return sum(not _is_own(one, expected) for one in found) + len(expected)


def _sampled(answer: str) -> str:
    """An answer as a trajectory shows it: with its end token."""
    return f"{answer}|"


def _is_own(trajectory: dict[str, Any], expected: dict[str, str]) -> bool:
    """Whether a trajectory is one row of one session, which is then not expected again."""
    (row,) = trajectory["rows"]
    names = {mark.partition(".")[0] for mark in MARK.findall(row["text"])}
    return len(names) == 1 and expected.pop(names.pop(), None) == row["sampled"]


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, its own and the system's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
