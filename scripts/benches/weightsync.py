"""Weight sync against memcpy, a plain sparse delta and dense transfers: bytes, encode, apply, links, pauses.

    scripts/bench weightsync [--only frames,...] [--repeats N] [--kept DIR] [--quick] [--model]

One SmolLM-135M-shaped model is really trained for some steps (`weightsync_cases/training.py`: 3 GB, minutes), and the
step that AdamW takes next gives the pairs: at 0.2, 1, 3, 10 and 50 % changed, by the learning rate alone. Ratios are of
CPU seconds of one thread, least of interleaved repeats in one run; figures of links and pauses are wall seconds. What
lies on a shared machine is noisy: look at ratios. Nothing here is a GPU or a network card.

bytes_per_changed_3pct    bytes of all frames, headers too, by changed words; over_floor_3pct: by their entropy
frame_over_memcpy_3pct    compare, code, digest, compress, seal over memcpy of the same words, bucket by bucket
vs_verl_encode_3pct       the plain delta's encode (peers/verl_like.py) over the whole frame's
vs_verl_apply_3pct        its masked apply over seal, decompression, checks, adding and digest, with numba
vs_verl_loader_3pct       the same over all of the loader in an engine, which checks the planes again and reads a share
vs_verl_apply_torch_3pct  the same over the loader without numba
vs_dense_10gbps           a version as dense words over one as frames, end to end on the same paced sockets
publish_blocks_step_share    seconds that a step waits for its publish, of the step
reload_over_pause_1pct    a reload from a directory over the pause for a version, in one local server; sglang_...: in
                          one SGLang (--only pause_sglang, after scripts/setup --sglang)
"""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from scripts.benches.weightsync_cases import blocked, frames, links, loader, models, pause
from scripts.benches.weightsync_cases.pairs import Figures
from scripts.benches.weightsync_cases.training import SMOL_135M, TINY, Shape, Trained, trained
from weightsync.config import WeightsyncConfig
from weightsync.warm import compile_kernels

FRACTIONS = (0.002, 0.01, 0.03, 0.1, 0.5)


def run_frames(model: Trained, shape: Shape, options: argparse.Namespace) -> Figures:
    """Every fraction."""
    return frames.compare(model, (0.03,) if options.quick else FRACTIONS, options.repeats)


def run_loader(model: Trained, shape: Shape, options: argparse.Namespace) -> Figures:
    """3 %, in process."""
    return loader.compare(shape, model, 0.03, options.repeats)


def run_links(model: Trained, shape: Shape, options: argparse.Namespace) -> Figures:
    """3 % at 1, 5 and 10 Gb/s, and unpaced."""
    return links.compare(model, 0.03, (10.0, None) if options.quick else (1.0, 5.0, 10.0, None), options.rounds)


def run_pause(model: Trained, shape: Shape, options: argparse.Namespace) -> Figures:
    """1 %, a local server over HTTP."""
    return pause.compare(shape, model, 0.01, 3 if options.quick else options.versions)


def run_pause_sglang(model: Trained, shape: Shape, options: argparse.Namespace) -> Figures:
    """1 %, the real SGLang over HTTP, without a device; not among the usual cases: its environment is gigabytes."""
    versions = 3 if options.quick else min(20, options.versions)
    return pause.compare_sglang(shape, model, 0.01, versions, options.sglang_python)


def run_blocked(model: Trained, shape: Shape, options: argparse.Namespace) -> Figures:
    """Three publishes between steps."""
    return blocked.compare(shape, model)


Case = Callable[[Trained, Shape, argparse.Namespace], Figures]

CASES: dict[str, Case] = {
    "frames": run_frames,
    "loader": run_loader,
    "links": run_links,
    "pause": run_pause,
    "blocked": run_blocked,
}
MORE_CASES: dict[str, Case] = {"pause_sglang": run_pause_sglang}


def main(argv: Sequence[str] = ()) -> Figures:
    """Figures of the chosen cases."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench weightsync", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(CASES), help=f"of {', '.join(CASES | MORE_CASES)}")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=9, help="versions each way and link")
    parser.add_argument("--versions", type=int, default=100, help="in the case pause")
    parser.add_argument("--kept", type=Path, help="folder that keeps the trained model for the next run (1.1 GB)")
    parser.add_argument(
        "--sglang-python", type=Path, default=Path(".venv-sglang/bin/python"), help="of scripts/setup --sglang"
    )
    parser.add_argument(
        "--model", action="store_true", help="seconds a version of 7B, 32B and 72B, from rates measured"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test: the keys are right, the figures are not")
    options = parser.parse_args(argv)
    if options.quick:
        options.repeats, options.rounds = 1, 1
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    shape = TINY if options.quick else SMOL_135M
    model = trained(shape, *((4, 4) if options.quick else (12, 10)), options.kept)
    compile_kernels(bucket_words=WeightsyncConfig().bucket_words)  # as a trainer does beside its start
    figures: Figures = {}
    for name in options.only.split(","):
        figures |= (CASES | MORE_CASES)[name](model, shape, options)
    if options.model:
        figures |= models.project(model, options.repeats)
    return figures
