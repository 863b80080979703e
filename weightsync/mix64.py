"""The digest's arithmetic inside numba's kernels: mix64 of an address and a word, and what a change adds to the sum.

It is the digest's definition and fixed by the format. numba does not see a change of it in kernels of other files that
were compiled before: who changes this one empties the cache, as with `vector`.
"""

from typing import Any

import numpy as np

from weightsync.vector import inlined

# The text of the kernels: numba's types are not Python's, hence Any.


@inlined
def begun(address: Any) -> Any:
    """mix64's first step for a word 0; that of another word differs in its own bits only."""
    base = np.uint64(address) << np.uint64(16)
    return base ^ (base >> np.uint64(30))


@inlined
def finished(x: Any) -> Any:
    """mix64's other steps."""
    x = x * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@inlined
def term(address: Any, word: Any, step: Any) -> Any:
    """What a word adds to the digest; one of 4 bytes (step 2) is two half words."""
    if step == 2:
        high = finished(begun(address + 1) ^ (np.uint64(word) >> np.uint64(16)))
        return finished(begun(address) ^ (np.uint64(word) & np.uint64(0xFFFF))) + high
    return finished(begun(address) ^ np.uint64(word))


@inlined
def gained(address: Any, before: Any, after: Any, step: Any) -> Any:
    """The digest's gain from a word that becomes another."""
    if step == 2:
        return term(address, after, step) - term(address, before, step)
    first = begun(address)
    return finished(first ^ np.uint64(after)) - finished(first ^ np.uint64(before))
