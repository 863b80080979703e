"""Merged deltas against the deltas that they replace: bytes that a server k versions behind downloads, either way.

    scripts/bench merged [--words MI] [--fractions 0.01,0.03] [--behind 4,16] [--images DIR]

Every version is published by a real publisher, into files in a temporary folder, while a server stays where it is. The
merged delta is made for it as in a run, except that it is made at every distance asked for and not at 3, 6, 12, ...

Weights are normal fp32 masters under Adam-like steps, cast to bf16; the step's size sets the fraction of words that
change. `drift` is how much of a step's direction the next one keeps: 0 for noise alone, 0.9 for Adam's first moment
under a gradient that is noise. `--images` takes a training run instead: its words after each step, as uint16 in
DIR/*_s<step>.npy. It does not show a network, or a model whose weights change otherwise.
"""

import argparse
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from weightsync import chain, merging
from weightsync.config import WeightsyncConfig
from weightsync.layout import Words
from weightsync.log import open_log
from weightsync.log.records import VersionRecord
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.shard import shards_of
from weightsync.transport import open_transport
from weightsync.versions import pack

DRIFTS = (0.0, 0.9)
NAME = "weight"


def main(argv: Sequence[str] = ()) -> dict[str, float]:
    """Ratios by fraction (in percent of words), drift and distance."""
    parser = argparse.ArgumentParser(prog="scripts/bench merged", description=__doc__)
    parser.add_argument("--words", type=int, default=8, help="Mi words")
    parser.add_argument("--fractions", default="0.01,0.03")
    parser.add_argument("--behind", default="4,16")
    parser.add_argument("--images", type=Path, help="folder with words of a training run")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    distances = [int(text) for text in options.behind.split(",")]
    figures: dict[str, float] = {}
    if options.images is not None:
        for run, files in _runs(options.images):
            images = (np.load(file) for file in files[: max(distances) + 1])
            figures |= {f"{name}_{run}": value for name, value in measure(images, distances).items()}
        return figures
    for fraction in (float(text) for text in options.fractions.split(",")):
        for drift in DRIFTS:
            size = step_for(fraction, drift)
            images = trajectory(options.words << 20, size, drift, max(distances), seed=11)
            found = measure(images, distances)
            figures |= {f"{name}_{100 * fraction:g}pct_drift_{drift:g}": value for name, value in found.items()}
    return figures


def measure(images: Iterator[Words], distances: Sequence[int]) -> dict[str, float]:
    """Publish all images; what a server at the first one downloads, at each distance."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as scratch:
        root = Path(scratch)
        held = torch.from_numpy(next(images).view(np.int16)).view(torch.bfloat16)
        model = root / "model"
        model.mkdir()
        save_file({NAME: held}, model / "model.safetensors")
        config = WeightsyncConfig(directory=str(root / "parts"), mode="changes", anchor_interval=1000, merged_share=1.0)
        log, transport = open_log(str(root / "log"), "bench"), open_transport(config, "unused", "bench")
        weights = {NAME: held}
        manifest = Manifest.from_model_dir(model)
        publisher = WeightPublisher(
            manifest, lambda: shards_of(weights.items(), manifest.dtypes), log, transport, config
        )
        publisher.publish_origin(model)
        publisher.claim(1)
        log.register("behind", "1", "http://behind", 1e6)
        log.put_ack("behind", "1", 0, log.digest_of(0) or 0, "serving")
        changed = 0
        for number, image in enumerate(images, 1):
            weights[NAME] = torch.from_numpy(image.view(np.int16)).view(torch.bfloat16)
            is_asked = number in distances
            merging.FEWEST_HOPS = 1 if is_asked else 1 << 30
            report = publisher.publish(pack(1, number))
            changed += report.num_changed
            if is_asked:
                figures |= _figures(number, log.records(), report.num_words)
                figures[f"merge_over_upload_s_{number}"] = round(report.seconds["merge"] / report.seconds["upload"], 2)
                # The next distance starts from plain deltas again.
                log.prune(1, (), (), [(0, pack(1, number))])
        figures["changed_fraction"] = round(changed / number / held.numel(), 4)
    return figures


def _figures(distance: int, records: Sequence[VersionRecord], num_words: int) -> dict[str, float]:
    way = chain.path(records, 0)
    assert way is not None
    plain = sum(record.delta.num_bytes for record in records if record.delta is not None)
    return {
        f"merged_over_sum_{distance}": round(way.num_bytes / plain, 3),
        f"sum_of_dense_{distance}": round(plain / (2 * num_words), 4),
        f"merged_of_dense_{distance}": round(way.num_bytes / (2 * num_words), 4),
        f"merged_changed_{distance}": round(way.deltas[-1].num_changed / num_words, 4),
    }


def trajectory(num_words: int, size: float, drift: float, steps: int, seed: int) -> Iterator[Words]:
    """bf16 words before and after each step."""
    rng = np.random.default_rng(seed)
    master = rng.standard_normal(num_words, dtype=np.float32) * np.float32(0.02)
    direction = rng.standard_normal(num_words, dtype=np.float32)
    yield _bf16(master)
    for _ in range(steps):
        noise = rng.standard_normal(num_words, dtype=np.float32)
        direction = np.float32(drift) * direction + np.float32((1 - drift**2) ** 0.5) * noise
        master = master - np.float32(size) * np.clip(direction * np.float32(0.4), -1, 1)
        yield _bf16(master)


def step_for(fraction: float, drift: float) -> float:
    """The size of step that changes about this fraction of the words."""
    low, high = 1e-9, 1e-1
    for _ in range(30):
        size = (low * high) ** 0.5
        *_, before, after = trajectory(1 << 17, size, drift, 3, seed=99)
        low, high = (size, high) if np.mean(before != after) < fraction else (low, size)
    return size


def _bf16(values: np.ndarray) -> Words:
    bits = values.view(np.uint32)
    return ((bits + ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)) >> np.uint32(16)).astype(np.uint16)


def _runs(directory: Path) -> Iterator[tuple[str, list[Path]]]:
    files: dict[str, dict[int, Path]] = {}
    for file in directory.glob("*.npy"):
        if found := re.fullmatch(r"(.+)_s(\d+)", file.stem):
            files.setdefault(found[1], {})[int(found[2])] = file
    for run, steps in sorted(files.items()):
        yield run, [steps[step] for step in sorted(steps)]
