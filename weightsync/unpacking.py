"""A stored plane as its bytes: decompressed, if it was, into no more memory than its frame's header may ask for."""

import threading

import zstandard

from weightsync.errors import CorruptDelta
from weightsync.planes import need

_MAX_WINDOW = 1 << 20
_of_thread = threading.local()


def unpacked(stored: memoryview, compressed: bool, size: int, where: str, name: str) -> bytes | memoryview:
    """The bytes of a plane.

    Args:
        stored: as in the frame.
        compressed: is it a zstd frame?
        size: what the header says that the plane has.
        where, name: for the message.
    Raises:
        CorruptDelta: it does not decompress, or to another size.
    """
    if compressed:
        # The embedded size is compared before memory is given: a hostile frame cannot ask for more than its header,
        # and the header cannot ask for more than the bucket.
        try:
            said = zstandard.frame_content_size(stored)
            need(said == size, where, f"zstd size of the {name}", said, size)
            plane: bytes | memoryview = _unpacker().decompress(stored, max_output_size=size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CorruptDelta(f"{where}: the {name} does not decompress: {error}. The part is refused.") from error
    else:
        plane = stored
    need(len(plane) == size, where, f"bytes of the {name}", len(plane), size)
    return plane


def _unpacker() -> zstandard.ZstdDecompressor:
    """The thread's own: making one takes as long as a small plane."""
    if not hasattr(_of_thread, "unpacker"):
        _of_thread.unpacker = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    unpacker: zstandard.ZstdDecompressor = _of_thread.unpacker
    return unpacker
