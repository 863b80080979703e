"""A data set: usable rows of several files, read one at a time.

Opening it reads every row once, to count and refuse; what stays in memory is one integer a row and each file's index.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from asyncrl.config import DataConfig
from asyncrl.data.fingerprint import fingerprint
from asyncrl.data.repeats import Repeats
from asyncrl.data.report import DataReport, FileReport, Finding
from asyncrl.data.rows import PromptRow, row_from_record
from asyncrl.data.source import FileRefused, Note, Record, RowRefused, Source, open_source
from asyncrl.data.template import TemplateRefused
from asyncrl.data.values import Json
from asyncrl.errors import DataError

# What control tokens of common templates look like: all that can be said without the model's tokenizer.
_CONTROL_LIKE = re.compile(r"<\|\w+\|>|<(?:start|end)_of_turn>|\[/?INST\]")


Tools = Sequence[Mapping[str, Json]]


class Renders(Protocol):
    """What reading needs of a tokenizer: data.template.PromptTemplate, or rollout.chat.ChatTemplate on top of it."""

    @property
    def fingerprint(self) -> str: ...

    def render(self, messages: Sequence[Mapping[str, Json]], tools: Sequence[Mapping[str, Json]] = ()) -> list[int]: ...

    def control_tokens_in(
        self, messages: Sequence[Mapping[str, Json]], tools: Sequence[Mapping[str, Json]] = ()
    ) -> tuple[str, ...]: ...


class Dataset:
    """Usable rows in file order. `dataset[i]` reads one; its `index` is its place among all rows, refused ones too."""

    def __init__(
        self,
        sources: Sequence[Source],
        starts: Sequence[int],
        usable: npt.NDArray[np.int64],
        *,
        prompt_key: str,
        fingerprint: str,
        report: DataReport,
    ) -> None:
        self._sources, self._starts, self._usable = sources, starts, usable
        self._prompt_key = prompt_key
        self.fingerprint = fingerprint
        self.report = report

    def __len__(self) -> int:
        return len(self._usable)

    def first(self, count: int | None) -> "Dataset":
        """The same data set with its first `count` usable rows alone; None: with all."""
        short = copy(self)
        short._usable = self._usable[:count]
        return short

    def __getitem__(self, i: int) -> PromptRow:
        """Read the i-th usable row.

        Raises:
            IndexError: there is none.
            DataError: the file was changed since it was opened.
        """
        index = int(self._usable[i])
        file = bisect_right(self._starts, index) - 1
        source = self._sources[file]
        try:
            record = source.read(index - self._starts[file])
            return row_from_record(record.values, index=index, prompt_key=self._prompt_key)[0]
        except RowRefused as refused:
            raise DataError(
                f"{source.path}: row {index - self._starts[file]} {refused.text}, but was fine when the run started. "
                "The file has changed; put the old one back, or start a new run."
            ) from None


def open_dataset(files: Sequence[Path], config: DataConfig, template: Renders | None, shown: Tools = ()) -> Dataset:
    """Open files as one data set and check every row.

    Args:
        files: .parquet or .jsonl, in the order that numbers their rows.
        config: which column is the prompt, how long it may be, whether unreadable rows are an error.
        template: counts tokens and finds control tokens; without one neither is checked.
        shown: schemas of the tools that prompts show which have none of their own, where they are known. Rows that fit
            without them alone are refused, not left out: a trainer knows no tools, and must count the same rows.
    Raises:
        DataError: a file cannot be used, or no row is left; all files' problems are in one message.
    """
    if not files:
        raise DataError(
            "no data files. Set data.train_files or data.sources (and data.val_files) to .parquet or .jsonl files."
        )
    scan = Scan(config, template, shown)
    for path in files:
        scan.add(Path(path))
    report = scan.report()
    problems = [file.error_text() for file in report.files if file.errors.total]
    if problems:
        raise DataError("\n".join(problems))
    settings: dict[str, str | int | bool] = {
        "prompt_key": config.prompt_key,
        "strict": config.strict,
        "shuffle": config.shuffle,
        "truncation": config.truncation,
        "filter_overlong_prompts": config.filter_overlong_prompts,
        "max_prompt_tokens": config.max_prompt_tokens,
        **_order_settings(config),
        "template": template.fingerprint if template is not None and config.filter_overlong_prompts else "",
    }
    return Dataset(
        scan.sources,
        scan.starts,
        np.asarray(scan.usable, np.int64),
        prompt_key=config.prompt_key,
        fingerprint=fingerprint(map(Path, files), **settings),
        report=report,
    )


def _order_settings(config: DataConfig) -> dict[str, str]:
    """What else says which prompt comes next; absent where it is the default, so that older runs keep their name."""
    weights = [[len(source.files), source.weight] for source in config.sources]
    policy = config.curriculum.policy
    return {
        **({"weights": json.dumps(weights)} if weights else {}),
        **({"curriculum": policy} if policy != "none" else {}),
    }


class Scan:
    """Reads files row by row and sorts the rows into usable, refused and errors."""

    def __init__(self, config: DataConfig, template: Renders | None, shown: Tools = ()) -> None:
        self.config, self.template, self._shown = config, template, shown
        self.sources: list[Source] = []
        self.starts: list[int] = []
        self.usable: list[int] = []
        self._files: list[FileReport] = []
        self._repeats = Repeats()
        self._num_rows = 0

    def add(self, path: Path) -> FileReport:
        """Read one more file; what is wrong with it is in its report, nothing is raised."""
        report = FileReport(str(path))
        self._files.append(report)
        try:
            source = open_source(path)
            self.sources.append(source)
            self.starts.append(self._num_rows)
            for place, record in source.scan():
                self._add_row(report, place, record)
        except FileRefused as refused:
            report.errors.add(Finding(refused.place, "unreadable_file", refused.text))
        except OSError as error:
            report.errors.add(Finding("the file", "unreadable_file", f"cannot be read: {error.strerror or error}"))
        if not report.errors.total and not report.num_fit:
            report.errors.add(Finding("the file", "no_rows", _why_empty(report)))
        return report

    def report(self) -> DataReport:
        """Everything found so far."""
        return DataReport(tuple(self._files), self._repeats.findings())

    def _add_row(self, report: FileReport, place: str, record: Record | RowRefused) -> None:
        index, self._num_rows, report.num_rows = self._num_rows, self._num_rows + 1, report.num_rows + 1
        try:
            if isinstance(record, RowRefused):
                raise record
            row, notes = row_from_record(record.values, index=index, prompt_key=self.config.prompt_key)
            notes = [*record.notes, *notes, *self._length_notes(row)]
        except RowRefused as refused:
            is_error = refused.fatal or (refused.unreadable and self.config.strict)
            report.is_fatal |= refused.fatal
            findings = report.errors if is_error else report.refused
            findings.add(Finding(place, refused.reason, refused.text))
            return
        for note in notes:
            report.warnings.add(Finding(place, note.reason, note.text))
        report.num_fit += 1
        report.data_sources[row.data_source] += 1
        self._repeats.add(row)
        self.usable.append(index)

    def _length_notes(self, row: PromptRow) -> list[Note]:
        """Control tokens and a prompt that will be cut. Raises RowRefused if it is too long to stay."""
        if self.template is None:
            return _lookalikes(row)
        try:
            num_tokens = len(self.template.render(row.messages, row.tools))
        except TemplateRefused as error:
            raise RowRefused("template", str(error)) from None
        except DataError as error:
            raise RowRefused("control_token", str(error)) from None
        notes = []
        if tokens := self.template.control_tokens_in(row.messages, row.tools):
            names = ", ".join(sorted(set(tokens)))
            notes.append(Note("control_token", f"its text has control tokens ({names}), encoded as plain text"))
        limit = self.config.max_prompt_tokens
        if num_tokens > limit:
            text = f"its prompt has {num_tokens} tokens, more than data.max_prompt_tokens = {limit}"
            if self.config.filter_overlong_prompts:
                raise RowRefused("too_long", text)
            if self.config.truncation == "error":
                raise RowRefused("too_long", f"{text}, and data.truncation is error", unreadable=True)
            notes.append(Note("truncated", f"{text}; it will be cut ({self.config.truncation})"))
        elif self._shown and not row.tools:
            self._check_with_tools(row, num_tokens)
        return notes

    def _check_with_tools(self, row: PromptRow, num_tokens: int) -> None:
        """Refuse a prompt that is too long only once the run's tools are shown."""
        assert self.template is not None  # it has counted num_tokens
        limit, with_tools = self.config.max_prompt_tokens, len(self.template.render(row.messages, self._shown))
        may_be_cut = self.config.truncation != "error" and not self.config.filter_overlong_prompts
        if with_tools > limit and not may_be_cut:
            raise RowRefused(
                "too_long_with_tools",
                f"its prompt has {with_tools} tokens with the tools that rollout.tools shows ({num_tokens} without), "
                f"more than data.max_prompt_tokens = {limit}. Rows are left out by their own length: raise the limit "
                f"by the {with_tools - num_tokens} tokens that the tools take, or leave such rows out of the file",
                fatal=True,
            )


def _lookalikes(row: PromptRow) -> list[Note]:
    found = {token for message in row.messages for token in _CONTROL_LIKE.findall(str(message.get("content", "")))}
    names = ", ".join(sorted(found))
    return [Note("control_token", f"its text looks like control tokens ({names})")] if found else []


def _why_empty(report: FileReport) -> str:
    if not report.num_rows:
        return "has no rows"
    first = report.refused.listed[0]
    reasons = ", ".join(f"{count} {reason}" for reason, count in report.refused.counts.items())
    return f"has no rows left: {report.refused.total} of {report.num_rows} dropped: {reasons}. First, {first}"
