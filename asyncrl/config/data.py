"""Section of the prompts: files, which rows of them are usable, and in which order they are drawn."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from asyncrl.config.section import Section


class MixedSourceConfig(Section):
    """Files that are drawn from together, and how often."""

    files: tuple[Path, ...] = Field(min_length=1)
    """Parquet files (verl's schema) or JSON Lines, in this order."""

    weight: float = Field(1.0, gt=0, le=1_000_000, allow_inf_nan=False)
    """Its share of the prompts is its weight over the sum of all weights, exactly, whatever its number of rows. Write
    round numbers: 3 and 1, or 0.7 and 0.3."""


class CurriculumConfig(Section):
    """Which prompts are played, by how well the policy did on them before."""

    policy: Literal["none", "pass_rate"] = "none"
    """`none`: every prompt once an epoch. `pass_rate`: those whose newest pass rate is in the band, and those that have
    none yet; the others are passed over. Each draw is recorded with its reason (asyncrl data draws)."""

    low: float = Field(0.1, ge=0, le=1)
    """Smallest pass rate that is played again."""

    high: float = Field(0.9, ge=0, le=1)
    """Largest pass rate that is played again."""

    pass_reward: float = 1.0
    """Smallest reward that passes."""

    retry_share: float = Field(0.1, ge=0, le=1)
    """Share of the prompts outside the band that are played all the same: the policy changes, and only a new result
    can tell."""

    @model_validator(mode="after")
    def the_band_is_not_empty(self) -> Self:
        """Refuse a band that no pass rate is in."""
        if self.low > self.high:
            raise ValueError(
                f"data.curriculum.low = {self.low} is above data.curriculum.high = {self.high}: no pass rate is "
                "between them. Swap the two."
            )
        return self


class DataConfig(Section):
    """Which prompts there are, which rows of the files are usable, and in which order they are drawn."""

    train_files: tuple[Path, ...] = ()
    """Parquet files (verl's schema) or JSON Lines to train on, in this order."""

    sources: tuple[MixedSourceConfig, ...] = ()
    """Files to train on with weights, in place of data.train_files. Which source the n-th prompt is of depends on n
    alone; each source has epochs of its own."""

    curriculum: CurriculumConfig = CurriculumConfig()
    """Prompts by pass rate."""

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

    @property
    def training_files(self) -> tuple[Path, ...]:
        """All files that are trained on, in the order that numbers their rows."""
        return tuple(path for source in self.sources for path in source.files) or self.train_files

    @model_validator(mode="after")
    def files_are_named_once(self) -> Self:
        """Refuse files without a weight beside those that have one."""
        if self.sources and self.train_files:
            raise ValueError(
                "data.train_files and data.sources are both set: the files of the first have no weight. Move them into "
                "an entry of data.sources."
            )
        return self
