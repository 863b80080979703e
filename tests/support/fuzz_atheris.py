"""Fuzz one decoder by coverage, where atheris is installed: it keeps the inputs that reach new lines and bends those.

    python -m tests.support.fuzz_atheris payload CORPUS_DIR -atheris_runs=1000000

The same targets, damage and judgement as `scripts/bench fuzz`. Atheris is no dependency: pip install it beside the
project for the run. It ends at the first fault, with the input in a file; the outcomes are printed at the end.
"""

import atexit
import random
import sys
from collections import Counter
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["buffer", "weightsync"]):
    from tests.support.fuzz_loop import judge
    from tests.support.fuzz_targets import TARGETS, Target


def main(argv: list[str]) -> None:
    """Never returns: libFuzzer ends the process."""
    target, corpus, draw = TARGETS[argv[1]], Path(argv[2]), random.Random(0)
    corpus.mkdir(parents=True, exist_ok=True)
    valid = [target.valid(draw) for _ in range(32)]
    for i, blob in enumerate(valid):
        target.decode(blob)
        (corpus / f"valid-{i}").write_bytes(blob)
    outcomes: Counter[str] = Counter()
    atexit.register(lambda: print(f"{sum(outcomes.values())} inputs, {len(outcomes)} outcomes, {outcomes['ok']} ok"))

    def one(data: bytes) -> None:
        outcome, fault, _ = judge(target, data)
        outcomes[outcome] += 1
        if fault is not None:
            raise AssertionError(f"{fault}: {data.hex()}")

    def bend(data: bytes, max_size: int, seed: int) -> bytes:
        own = random.Random(seed)
        try:
            bent = _damage(target, data, own, valid)
        except Exception:  # what cannot be taken apart any more is bent byte by byte
            bent = atheris.Mutate(data, max_size)
        return bent[:max_size]

    atheris.Setup([argv[0], str(corpus), *argv[3:]], one, custom_mutator=bend)
    atheris.Fuzz()


def _damage(target: Target, data: bytes, draw: random.Random, valid: list[bytes]) -> bytes:
    if not data or draw.random() < 0.3:
        raise ValueError("its bytes are to be bent")
    return target.damage(data, draw, valid)


if __name__ == "__main__":
    main(sys.argv)
