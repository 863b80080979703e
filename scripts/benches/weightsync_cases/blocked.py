"""What a publish costs the trainer: seconds that a step waits for it, and memory beside the model's.

The step is one of AdamW in float32 on MICRO_BATCHES batches of the bench's model, 1024 tokens: small for such runs,
which flatters nothing, since what blocks does not grow with tokens. The rank copies its words aside (capture), in the
wire dtype; everything after that lies beside the next step. Memory is what the process grows by, at its peak, from
before the publisher exists to the end of a publish: snapshot, copy and buffers.
"""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from scripts.benches.weightsync_cases.pairs import Figures
from scripts.benches.weightsync_cases.sync import RUN, memory_folder, save
from scripts.benches.weightsync_cases.training import RL_RATE, Shape, Trained, text_batches, text_loss
from weightsync.config import WeightsyncConfig
from weightsync.log import open_log
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.shard import shards_of
from weightsync.transport import open_transport
from weightsync.versions import pack

MICRO_BATCHES, PUBLISHES = 8, 3


def compare(shape: Shape, model: Trained) -> Figures:
    """The share of a step that publishing blocks, and bytes of memory a parameter."""
    policy = LlamaForCausalLM(shape.config())
    parameters = dict(policy.named_parameters())
    with torch.no_grad():
        for spec in model.manifest.tensors:
            run = torch.from_numpy(model.masters[spec.offset : spec.offset + spec.num_words].copy())
            parameters[spec.name].copy_(run.view(spec.shape))
    with TemporaryDirectory(prefix="asyncrl-bench-", dir=memory_folder()) as scratch:
        directory, images = Path(scratch), {name: p.detach().bfloat16() for name, p in parameters.items()}
        model_dir = save(shape, images, directory / "model")
        del images
        optimizer = torch.optim.AdamW(policy.parameters(), lr=RL_RATE)
        batches = text_batches(shape.vocab)
        steps = [_step(policy, optimizer, batches)]
        before = _reset_peak()
        publisher = _publisher(parameters, model_dir, directory)
        blocked, beside = [], []
        for number in range(1, PUBLISHES + 1):
            start = time.perf_counter()
            staged = publisher.capture()
            blocked.append(time.perf_counter() - start)
            start = time.perf_counter()
            publisher.publish(pack(1, number), staged)
            beside.append(time.perf_counter() - start)
            peak = _peak()
            steps.append(_step(policy, optimizer, batches))
    step, wait = statistics.median(steps[1:]), statistics.median(blocked[1:])
    return {
        "publish_blocks_step_share": round(wait / (step + wait), 4),
        "publish_blocks_ms": round(1e3 * wait, 1),
        "publish_beside_ms": round(1e3 * statistics.median(beside[1:]), 1),
        "step_ms": round(1e3 * step, 1),
        "peak_extra_bytes_per_param": round((peak - before) / model.manifest.num_words, 2),
    }


def _publisher(parameters: dict[str, nn.Parameter], model_dir: Path, directory: Path) -> WeightPublisher:
    config = WeightsyncConfig(directory=str(directory / "parts"), anchor_interval=1 << 20, keep_deltas=1)
    home = str(directory / "log")
    manifest = Manifest.from_model_dir(model_dir)
    publisher = WeightPublisher(
        manifest,
        lambda: shards_of(parameters.items(), manifest.dtypes),
        open_log(home, RUN),
        open_transport(config, home, RUN),
        config,
    )
    publisher.publish_origin(model_dir)
    publisher.claim(1)
    return publisher


def _step(policy: LlamaForCausalLM, optimizer: torch.optim.Optimizer, batches: Iterator[Tensor]) -> float:
    """Seconds of one step."""
    start = time.perf_counter()
    optimizer.zero_grad()
    for _ in range(MICRO_BATCHES):
        (text_loss(policy, next(batches)) / MICRO_BATCHES).backward()  # type: ignore[no-untyped-call]  # torch's
    optimizer.step()
    return time.perf_counter() - start


def _reset_peak() -> int:
    """Let the kernel count the process's peak anew; bytes resident at this moment."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(field)).split()[1]) << 10
