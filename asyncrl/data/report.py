"""What a reading of data files found: rows usable, rows refused with place and reason, warnings."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncrl.data.values import Json

LISTED = 10  # findings of one reason that are kept with their text; the others are only counted


@dataclass(frozen=True)
class Finding:
    """One thing found: where (`line 5`, `row 4`), a reason to count by, and what a person reads."""

    place: str
    reason: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class Findings:
    """Counts by reason, with the first ten findings of each; bounded however bad a file is."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.listed: list[Finding] = []

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it if it is among the first ten of its reason."""
        self.counts[finding.reason] += 1
        if self.counts[finding.reason] <= LISTED:
            self.listed.append(finding)

    @property
    def total(self) -> int:
        """Findings counted, kept or not."""
        return self.counts.total()

    def lines(self, indent: str = "  ") -> list[str]:
        """The first ten and, if there are more, a line with the total."""
        shown = [f"{indent}{finding}" for finding in self.listed[:LISTED]]
        by_reason = ", ".join(f"{count} {reason}" for reason, count in self.counts.items())
        return shown if self.total <= len(shown) else [*shown, f"{indent}... {self.total} in total: {by_reason}"]

    def to_json(self) -> Json:
        """Total, counts by reason, and what is kept."""
        listed: list[Json] = [{"place": item.place, "reason": item.reason, "text": item.text} for item in self.listed]
        return {"total": self.total, "by_reason": dict(self.counts), "listed": listed}


@dataclass
class FileReport:
    """One file: `errors` stop a run, `refused` rows are left out, `warnings` are about rows that stay.

    num_rows counts records (blank lines are none), num_fit those that passed every check. num_usable is 0 as soon as
    there is an error: a file is used as a whole or not at all. is_fatal: with data.strict=false, too.
    """

    path: str
    num_rows: int = 0
    num_fit: int = 0
    errors: Findings = field(default_factory=Findings)
    refused: Findings = field(default_factory=Findings)
    warnings: Findings = field(default_factory=Findings)
    data_sources: Counter[str] = field(default_factory=Counter)
    is_fatal: bool = False

    @property
    def num_usable(self) -> int:
        """Rows a run would draw from."""
        return 0 if self.errors.total else self.num_fit

    def error_text(self) -> str:
        """Why the file cannot be used, the first ten places, and what to do."""
        head = f"{self.path}: {self.errors.total} problem{'s' if self.errors.total > 1 else ''}, so it cannot be used"
        lines = [f"{head}.", *self.errors.lines()]
        if self.num_fit and not self.is_fatal:
            lines.append(
                f"  Fix the file, or set data.strict=false to leave such rows out ({self.num_fit} of {self.num_rows} "
                "would remain)."
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Json]:
        """Everything, for machines."""
        return {
            "file": self.path,
            "rows": self.num_rows,
            "usable": self.num_usable,
            "errors": self.errors.to_json(),
            "refused": self.refused.to_json(),
            "warnings": self.warnings.to_json(),
            "data_sources": dict(self.data_sources),
        }


@dataclass(frozen=True)
class DataReport:
    """All files of a data set, and what shows only across them (`warnings`: repeated prompts)."""

    files: Sequence[FileReport]
    warnings: Findings = field(default_factory=Findings)

    @property
    def num_rows(self) -> int:
        """Rows in all files."""
        return sum(file.num_rows for file in self.files)

    @property
    def num_usable(self) -> int:
        """Usable rows in all files."""
        return sum(file.num_usable for file in self.files)

    @property
    def refused(self) -> Counter[str]:
        """Rows left out, by reason."""
        return sum((file.refused.counts for file in self.files), Counter())

    @property
    def data_sources(self) -> Counter[str]:
        """Usable rows by data source; a reward is chosen by it."""
        return sum((file.data_sources for file in self.files), Counter())

    def summary(self) -> str:
        """One line: usable rows, and what was left out or looks odd by reason."""
        left_out = ", ".join(f"{count} {reason}" for reason, count in self.refused.items())
        odd: Counter[str] = sum((file.warnings.counts for file in self.files), Counter()) + self.warnings.counts
        notes = ", ".join(f"{count} {reason}" for reason, count in odd.items())
        text = f"{self.num_usable} of {self.num_rows} rows usable"
        return text + (f"; left out: {left_out}" if left_out else "") + (f"; warnings: {notes}" if notes else "")
