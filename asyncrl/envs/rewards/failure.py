"""An exception in one line: its type, its text and the line that raised it."""

import traceback
from pathlib import Path

from asyncrl.data.values import excerpt


def described(error: BaseException, *, within: Path | None = None) -> str:
    """For example: KeyError: 'answer' (reward.py:12, in compute_score).

    Args:
        within: the file whose line is named, if the error passed through it, and not that of a library which it called.
    """
    frames = traceback.extract_tb(error.__traceback__)
    text = f"{type(error).__name__}: {excerpt(str(error))}" if str(error) else type(error).__name__
    if not frames:
        return text
    own = [frame for frame in frames if within is not None and frame.filename == str(within.absolute())]
    last = (own or frames)[-1]
    return f"{text} ({last.filename.rsplit('/', 1)[-1]}:{last.lineno}, in {last.name})"
