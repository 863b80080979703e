"""What must not happen to the real SGLang's weights: refusals leave it alive and as it was, damage is found and healed.

Each test starts servers, so each follows one story to its end.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from asyncrl.inference.activation import Activated, ActivationFailed, Held, Pausing, activate, inspect
from buffer.versions import pack
from tests.support.event_loop import in_event_loop
from tests.support.inference_servers import payload
from tests.support.local_models import save_model
from tests.support.sglang_python import skip_without_sglang
from tests.support.sglang_run import SglangRun, checksums, expected_checksums, greedy, overwrite
from weightsync import sglang_loader as loader
from weightsync.receiver import Receiver
from weightsync.ticket import TICKET

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

NORM = "model.norm.weight"
PAUSING = Pausing(kv="recompute", num_ranks=1, deadline_s=60.0)


@pytest.fixture
def run(tmp_path: Path) -> SglangRun:
    skip_without_sglang()
    return SglangRun(tmp_path, save_model(tmp_path / "model", "qwen2"), bucket_words=5000)


def edit_ticket(stage: Path, **changes: object) -> None:
    path = stage / TICKET
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def flip(stage: Path, plane: str) -> None:
    """A bit of the first bucket's first byte of gaps or of values."""
    _, _, _, num_gaps, _, at = json.loads((stage / TICKET).read_text())["entries"][0]
    (path,) = stage.glob("parts-*")
    raw = bytearray(path.read_bytes())
    raw[at if plane == "gaps" else at + -(-num_gaps // 8) * 8] ^= 1
    path.unlink()  # other servers may have links to it
    path.write_bytes(raw)


def rename_a_tensor(stage: Path) -> None:
    (layout,) = stage.glob("layout-*.json")
    text = layout.read_text().replace(NORM, "model.nobody.weight")
    (stage / "layout-other.json").write_text(text)
    edit_ticket(stage, layout="other")


REFUSALS: dict[str, tuple[Callable[[Path], object], set[int]]] = {
    "no ticket": (lambda stage: (stage / TICKET).unlink(), {loader.BAD_TICKET}),
    "another base": (lambda stage: edit_ticket(stage, base=pack(1, 7)), {loader.WRONG_BASE}),
    "another branch's base": (lambda stage: edit_ticket(stage, base=pack(2, 0)), {loader.WRONG_BASE}),
    "weights of another base": (lambda stage: edit_ticket(stage, base_digest=5), {loader.BASE_DIGEST}),
    "another result": (lambda stage: edit_ticket(stage, digest=5), {loader.RESULT_DIGEST}),
    "no parts": (lambda stage: next(stage.glob("parts-*")).unlink(), {loader.BAD_PART}),
    "an unknown tensor": (rename_a_tensor, {loader.BAD_LAYOUT}),
    "a bit of where": (lambda stage: flip(stage, "gaps"), {loader.BAD_PART, loader.RESULT_DIGEST}),
    "a bit of what": (lambda stage: flip(stage, "values"), {loader.RESULT_DIGEST}),
}


@in_event_loop
async def test_what_the_loader_refuses_leaves_the_server_alive_and_its_weights_alone(
    run: SglangRun, tmp_path: Path
) -> None:
    """B049, B051, B066, B068: a wrong base, a second delivery, an unknown name, a flipped bit."""
    stage = tmp_path / "stage"
    server = run.server("s", run.model_dir)
    client = run.cluster.client(url := server.url())
    receiver = Receiver(
        *(run.cluster.log, run.cluster.transport(), run.cluster.config),
        **{"server": "s", "incarnation": "1", "url": url, "stage_dir": stage, "model_dir": run.model_dir},
    )
    run.step(1)
    await asyncio.to_thread(run.publish)
    try:
        await server.begin(url, stage, client)
        receiver.stage_inspect()
        status = await inspect(client, pausing=PAUSING)
        await client.resume()
        assert (status.version, status.digest) == (0, receiver.origin_digest())
        before, answers = checksums(url), await greedy(client)
        held = Held(0, status.digest)
        for name, (damage, codes) in REFUSALS.items():
            ticket = receiver.stage(0)
            assert ticket is not None
            damage(stage)
            with pytest.raises(ActivationFailed) as refusal:
                await activate(client, ticket, held=held, pausing=PAUSING)
            found = await client.weight_status()
            assert found.code in codes, f"{name}: {loader.CODES[found.code]}"
            assert not refusal.value.dirty, f"{name}: requests in flight may go on"
            assert checksums(url) == before, name
            assert (await client.model_info()).weight_version == "0.0"
        assert await greedy(client) == answers
        note = json.loads((stage / "status-0.json").read_text())
        assert (note["code"], note["version"]) == (found.code, "0.0")
        assert note["reason"]

        ticket = receiver.stage(0)
        assert ticket is not None
        first = await activate(client, ticket, held=held, pausing=PAUSING)
        assert first.num_changed > 0
        assert checksums(url)[0] == expected_checksums(run.weights)
        again: Activated = await activate(client, ticket, held=Held(ticket.target, ticket.digest), pausing=PAUSING)
        assert (again.num_changed, (await client.weight_status()).code) == (0, loader.ALREADY)
        assert checksums(url)[0] == expected_checksums(run.weights)
        assert (await client.model_info()).weight_version == "1.1"
    finally:
        await server.end()
        await client.close()


@in_event_loop
async def test_damaged_weights_and_a_server_that_dies_end_on_the_trainers_weights(
    run: SglangRun, caplog: pytest.LogCaptureFixture
) -> None:
    host = run.cluster.host(engine="sglang", **run.spec)
    async with run.cluster.running(host):
        url = await run.serving(deadline_s=300)
        run.step(1)
        await asyncio.to_thread(run.publish)
        await run.serving()
        flipped = run.weights[NORM].clone()
        flipped.view(torch.int16)[5] ^= 1
        overwrite(url, payload([(NORM, flipped)]), tp=1)
        assert checksums(url)[0] != expected_checksums(run.weights)
        # No delta touches the word; it is found because a share of all words is read again at each version.
        for number in range(2, 6):
            norm = run.weights[NORM]
            run.step(number)
            run.weights[NORM] = norm
            await asyncio.to_thread(run.publish)
            await run.serving()
            if host.facts.counts.get("activation_failures"):
                break
        assert host.facts.counts["activation_failures"] == 1
        assert f"words of {NORM} changed since they were loaded" in caplog.text
        assert checksums(url)[0] == expected_checksums(run.weights)
        assert host.facts.counts["lives"] == 1

        run.cluster.kill_server("server-0")
        run.step(9)
        await asyncio.to_thread(run.publish)
        url = await run.serving(deadline_s=300)
        assert host.facts.counts["lives"] == 2
        assert checksums(url)[0] == expected_checksums(run.weights)
        assert (await run.cluster.client(url).model_info()).weight_version == f"1.{run.version & 0xFFFFFFFF}"
