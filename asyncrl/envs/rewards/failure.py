"""An exception in one line: its type, its text and the line that raised it."""

import traceback

from asyncrl.data.values import excerpt


def described(error: BaseException) -> str:
    """For example: KeyError: 'answer' (reward.py:12, in compute_score)."""
    frames = traceback.extract_tb(error.__traceback__)
    text = f"{type(error).__name__}: {excerpt(str(error))}" if str(error) else type(error).__name__
    if not frames:
        return text
    last = frames[-1]
    return f"{text} ({last.filename.rsplit('/', 1)[-1]}:{last.lineno}, in {last.name})"
