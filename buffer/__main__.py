"""python -m buffer DIRECTORY: the embedded server, found or started in DIRECTORY, until Ctrl-C or SIGTERM."""

import argparse
import signal
import sys
import threading
from pathlib import Path

from buffer import embedded
from buffer.errors import BufferError


def main() -> int:
    """Print the address of the server, then keep it until a signal; the last user stops it."""
    parser = argparse.ArgumentParser(prog="python -m buffer", description=__doc__)
    parser.add_argument("directory", type=Path, help="where its data, log and password are kept")
    directory: Path = parser.parse_args().directory
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        with embedded.ensure(directory) as server:
            print(server.url, flush=True)
            stop.wait()
    except BufferError as error:
        print(f"python -m buffer: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
