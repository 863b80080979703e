"""What a run would make of data files, without starting one: rows usable, rows refused, warnings, exit code."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl.config import DataConfig
from asyncrl.data.dataset import Scan
from asyncrl.data.report import DataReport, FileReport, Findings
from asyncrl.data.template import PromptTemplate
from asyncrl.data.values import Json
from asyncrl.errors import DataError


@dataclass(frozen=True)
class CheckReport:
    """The answer of `asyncrl check-data`. Exit code 0: a run would start on these files; 2: it would refuse them."""

    data: DataReport

    @property
    def exit_code(self) -> int:
        """0, or that of a data error if any file cannot be used."""
        return DataError.exit_code if any(file.errors.total for file in self.data.files) else 0

    def to_json(self) -> dict[str, Json]:
        """Files with their counts and findings, totals, exit code."""
        return {
            "ok": self.exit_code == 0,
            "exit_code": self.exit_code,
            "rows": self.data.num_rows,
            "usable": self.data.num_usable,
            "files": [file.to_json() for file in self.data.files],
            "warnings": self.data.warnings.to_json(),
        }

    def render(self) -> str:
        """For a person: each file, then what shows across files, then the verdict."""
        lines = [line for file in self.data.files for line in _file_lines(file)]
        lines += _section("warnings across files", self.data.warnings)
        verdict = "these files can be used" if self.exit_code == 0 else "these files cannot be used as they are"
        return "\n".join([*lines, f"{self.data.num_usable} of {self.data.num_rows} rows usable: {verdict}."])


def run_check(paths: Sequence[Path], *, config: DataConfig | None, tokenizer_dir: Path | None) -> CheckReport:
    """Check files as a run would read them.

    Args:
        paths: .parquet or .jsonl files; a missing one is reported like any other problem.
        config: the run's data section; None: its defaults.
        tokenizer_dir: a model directory, to count tokens and find control tokens; None: neither is checked.
    Raises:
        DataError: no paths, or tokenizer_dir is no model directory with a chat template.
    """
    if not paths:
        raise DataError("no files to check. Name .parquet or .jsonl files.")
    template = PromptTemplate.from_model_dir(tokenizer_dir) if tokenizer_dir is not None else None
    scan = Scan(config or DataConfig(), template)
    for path in paths:
        scan.add(Path(path))
    return CheckReport(scan.report())


def _file_lines(file: FileReport) -> list[str]:
    lines = [f"{file.path}: {file.num_usable} of {file.num_rows} rows usable"]
    if file.data_sources:
        lines.append("  sources: " + ", ".join(f"{name} ({count})" for name, count in file.data_sources.items()))
    lines += _section("errors", file.errors) + _section("refused", file.refused) + _section("warnings", file.warnings)
    if file.errors.total and file.num_fit:
        lines.append(f"  with data.strict=false the bad rows would be left out and {file.num_fit} would remain")
    return lines


def _section(title: str, findings: Findings) -> list[str]:
    return [f"  {title}: {findings.total}", *findings.lines("    ")] if findings.total else []
