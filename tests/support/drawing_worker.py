"""A process that reserves an ordinal by a curriculum and never plays it: it says what it was given, and waits.

Arguments: the URL of the server and the run's name. One line of JSON on standard output.
"""

import json
import sys
import threading

from buffer import BufferConfig, Claim, Draw, ReplayBuffer


def main(url: str, run: str) -> None:
    """Reserve one ordinal."""
    buffer = ReplayBuffer.connect(url, run, BufferConfig())
    claim = buffer.reserve("doomed", (Draw(5, 42, "pass rate 0.5 (4 of 8, ordinal 1)"), Draw(9, 43, "no result yet")))
    assert isinstance(claim, Claim)
    print(json.dumps({"ordinal": claim.ordinal, "token": claim.token}), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
