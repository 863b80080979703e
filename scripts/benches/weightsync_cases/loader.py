"""The loader inside the engine against the plain delta's masked apply.

The loader reads its ticket and a share of the weights, checks the planes again, adds every change to the old word and
compares the digest: all of it in one go, or, of a version that was prepared, what is left for the pause. CPU seconds of
one thread, least of interleaved repeats.
"""

import time

from scripts.benches.peers import verl_like
from scripts.benches.weightsync_cases.pairs import Figures, Pair, percent
from scripts.benches.weightsync_cases.sync import Sync, running_sync
from scripts.benches.weightsync_cases.training import Shape, Trained


def compare(shape: Shape, model: Trained, fraction: float, repeats: int) -> Figures:
    """The masked apply's time over the loader's, with numba and without."""
    pair = Pair.at(model, fraction)
    target = pair.tensors(pair.old.copy())
    rounds = list(verl_like.encode(pair.tensors(pair.new), pair.tensors(pair.old)))
    least = dict.fromkeys(("numba", "numba_pause", "torch", "torch_pause", "verl"), float("inf"))
    with running_sync(shape, pair) as sync:
        sync.turn()  # records the address map and measures the engine's words
        for _ in range(repeats):
            _note(least, "numba", sync)
            start = time.thread_time()
            for one in rounds:
                verl_like.apply(one, target)
            least["verl"] = min(least["verl"], time.thread_time() - start)
            _note(least, "torch", sync, has_numba=False)
        assert sync.holds_what_was_published(), "the engine's words are not the published ones"
    where = percent(fraction)
    return {
        f"loader_ms_{where}": round(1e3 * least["numba"], 1),
        f"loader_torch_ms_{where}": round(1e3 * least["torch"], 1),
        f"loader_pause_ms_{where}": round(1e3 * least["numba_pause"], 1),
        f"loader_torch_pause_ms_{where}": round(1e3 * least["torch_pause"], 1),
        f"vs_verl_loader_{where}": round(least["verl"] / least["numba"], 2),
        f"vs_verl_apply_torch_{where}": round(least["verl"] / least["torch"], 2),
    }


def _note(least: dict[str, float], kernels: str, sync: Sync, *, has_numba: bool = True) -> None:
    least[kernels] = min(least[kernels], sync.turn(has_numba=has_numba).load_cpu)
    pause = sync.turn(prepared=True, has_numba=has_numba).load_cpu
    least[f"{kernels}_pause"] = min(least[f"{kernels}_pause"], pause)
