"""Changes of a run of an engine's words that lie in the CPU's memory, without torch: a call of it costs more than most
runs take."""

import numpy as np

from weightsync import diff
from weightsync.digest import MASK, digest_at
from weightsync.layout import Index, Words, address_step


def preview(words: Words, positions: Index, differences: Words, *, shift: int, start: int) -> tuple[Index, Words, int]:
    """What adding to a run of a storage would make of it; nothing is written.

    Args:
        words: [m] the storage.
        positions: [n] rising; words[positions + shift] change.
        differences: [n] unsigned, as `words`.
        shift: from position to index.
        start: address of position 0.
    Returns:
        Indices [n], new words [n], and the digest's gain modulo 2^64.
    """
    step = address_step(words.dtype.itemsize)
    if diff.HAVE_NUMBA:
        indices, new = np.empty_like(positions), np.empty_like(differences)
        gain = diff.preview(words, positions, differences, shift, start, step, indices, new)
        return indices, new, int(gain) & MASK
    indices = positions + shift
    old = words[indices]
    new = old + differences  # modulo 2^bits, as unsigned numpy words wrap
    addresses = start + positions * step
    return indices, new, (digest_at(addresses, new) - digest_at(addresses, old)) & MASK


def put(words: Words, indices: Index, new: Words) -> None:
    """words[indices] = new; no index comes twice."""
    if diff.HAVE_NUMBA:
        diff.put(words, indices, new)
    else:
        words[indices] = new
