"""Harnesses as the only workers of a run: what they play over HTTP is trained on, and nothing is lost."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.conftest import Start
from tests.support.commands import metric_lines, summary

NUM_HARNESSES = 24


class Harnesses:
    """Threads' worth of harnesses in one: each asks for sessions and plays them until the gateway is gone."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._headers = url, {"authorization": f"Bearer {key}"}
        self.num_ended = self.num_streams = 0
        self.refusals: list[str] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._play()), name="harnesses")
        self._thread.start()

    def join(self) -> None:
        """Wait until the gateway has closed its door to all of them."""
        self._thread.join(60.0)
        assert not self._thread.is_alive()

    async def _play(self) -> None:
        limits = httpx.Limits(max_connections=NUM_HARNESSES)
        async with httpx.AsyncClient(base_url=self._url, headers=self._headers, timeout=60.0, limits=limits) as http:
            await asyncio.gather(*(self._harness(http) for _ in range(NUM_HARNESSES)))

    async def _harness(self, http: httpx.AsyncClient) -> None:
        try:
            while True:
                reply = await http.post("/sessions", json={"wait_s": 20})
                if reply.status_code == 201:
                    await self._session(http, reply.json())
                elif reply.status_code == 503:
                    await asyncio.sleep(float(reply.headers["retry-after"]))
                else:
                    self.refusals.append(reply.text)
        except httpx.TransportError:
            return  # the gateway has ended with its run

    async def _session(self, http: httpx.AsyncClient, session: dict[str, Any]) -> None:
        asked = {"model": "any", "messages": session["messages"], "stream": session["episode"] % 2 == 1}
        turn = await http.post(f"{session['base_url']}/chat/completions", json=asked)
        self.num_streams += turn.headers["content-type"].startswith("text/event-stream") and b"[DONE]" in turn.content
        ended = await http.post(f"/sessions/{session['id']}/end", json={})
        for reply in (turn, ended):
            if reply.status_code not in (200, 401, 404, 409):  # the run may end amid a session
                self.refusals.append(reply.text)
        self.num_ended += ended.status_code == 200


def test_what_harnesses_play_is_trained_on(starter: None, start: Start, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    keys = ("rollout.workers=0", "gateway.port=0", "trainer.steps=3")
    trainer, rollout, gateway = start("train", *keys), start("serve-rollout", *keys), start("gateway", *keys)
    gateway.until("it listens", lambda: "ready " in gateway.text())
    (ready,) = (line for line in gateway.text().splitlines() if line.startswith("ready "))
    harnesses = Harnesses(ready.split()[1], (run_dir / "gateway" / "key").read_text())
    assert trainer.wait() == 0, trainer.text() + gateway.text()
    assert rollout.wait() == 0, rollout.text()
    assert gateway.wait() == 0, gateway.text()  # a finished run stops its gateways, as it stops its workers
    harnesses.join()
    assert harnesses.refusals == []
    facts = summary(run_dir)
    assert (facts["steps"], facts["audit_ok"], facts["weights_equal"]) == (3, True, True)
    assert harnesses.num_ended >= 3 * 8 * 8
    assert harnesses.num_streams >= 3 * 8 * 4, "the server's own streams, with the versions of their tokens"
    rewards = [float(line["critic/rewards/mean"]) for line in metric_lines(run_dir) if "critic/rewards/mean" in line]
    assert len(rewards) >= 3
    assert all(0 < reward < 1 for reward in rewards)
