"""Section of the prompts: files, which rows of them are usable, and in which order they are drawn."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from asyncrl.config.section import Section


class DataConfig(Section):
    """Which prompts there are, and which rows of the files are usable."""

    train_files: tuple[Path, ...] = ()
    """Parquet files (verl's schema) or JSON Lines to train on, in this order."""

    val_files: tuple[Path, ...] = ()
    """Held-out files for evaluation; never trained on. Empty: no evaluation."""

    prompt_key: str = "prompt"
    """Column that holds the prompt: a list of chat messages, or a string for one user message."""

    max_prompt_tokens: int = Field(1024, ge=1)
    """Longest prompt in tokens, chat template included. What happens to longer ones: the next two keys."""

    filter_overlong_prompts: bool = True
    """Leave rows out whose prompt is longer than data.max_prompt_tokens, and count them."""

    truncation: Literal["error", "left", "right", "middle"] = "error"
    """What to do with a longer prompt that was not left out: refuse it, or cut tokens on that side."""

    shuffle: bool = True
    """Draw the rows of each epoch in an order made from run.seed; false keeps the file order."""

    strict: bool = True
    """Refuse a file with lines that cannot be read, listing them. False leaves them out, counted by reason. Rows that
    can be read but not used (an empty prompt, no usable truth) are left out and counted either way."""
