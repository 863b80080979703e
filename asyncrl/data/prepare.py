"""Write the rows of a converter as Parquet files, one a split, and read them back as a run would."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from asyncrl.data.check import run_check
from asyncrl.data.converters.base import ConvertedRow, Converter, Settings
from asyncrl.data.report import Finding, Findings
from asyncrl.data.values import Json
from asyncrl.errors import DataError


@dataclass(frozen=True)
class Prepared:
    """What was written.

    Attributes:
        files: of each split, and its rows, in the order of their indexes.
        unusable: records that made no row.
    """

    files: Mapping[str, tuple[Path, tuple[ConvertedRow, ...]]]
    unusable: Findings

    def to_json(self) -> dict[str, Json]:
        """Files with their counts, and what was left out."""
        files: dict[str, Json] = {
            split: {"file": str(path), "rows": len(rows)} for split, (path, rows) in self.files.items()
        }
        return {"files": files, "unusable": self.unusable.to_json()}


def prepare(
    converter: Converter, source: Path | None, out: Path, settings: Settings, *, leave_out: bool = False
) -> Prepared:
    """Convert `source` and write `<out>/<split>.parquet`; nothing is written before all records were read.

    Args:
        converter: of the table.
        source: file or folder that it reads; None for one that reads none.
        out: folder; made if it is missing. Files of the same names are replaced.
        settings: of the converter.
        leave_out: write the rows that can be used, though there are records that cannot.
    Raises:
        DataError: an unknown setting; records that make no row, named; no rows; a written file that reads otherwise.
    """
    for name in settings:
        if name not in converter.settings:
            known = ", ".join(converter.settings) or "none"
            raise DataError(f"there is no setting {name!r} of this converter; it has: {known}.")
    rows, unusable = _converted(converter, source, settings)
    if unusable.total and not leave_out:
        lines = "\n".join(unusable.lines())
        raise DataError(
            f"{unusable.total} records make no row, so nothing was written:\n{lines}\n"
            "  Mend them, or leave them out with --leave-out."
        )
    if not rows:
        raise DataError("no record makes a row, so nothing was written." + "".join(f"\n{x}" for x in unusable.lines()))
    out.mkdir(parents=True, exist_ok=True)
    files = {}
    for split in sorted(rows):
        path = out / f"{split}.parquet"
        _write(path, rows[split])
        files[split] = (path, tuple(rows[split]))
    return Prepared(files, unusable)


def _converted(
    converter: Converter, source: Path | None, settings: Settings
) -> tuple[dict[str, list[ConvertedRow]], Findings]:
    rows: dict[str, list[ConvertedRow]] = {}
    unusable = Findings()
    for made in converter.convert(source, settings):
        if isinstance(made, ConvertedRow):
            rows.setdefault(made.split, []).append(made)
        else:
            unusable.add(Finding(made.place, made.reason, made.text))
    return rows, unusable


def _write(path: Path, rows: list[ConvertedRow]) -> None:
    """A whole file or none; read back before it takes its name."""
    from asyncrl.data.write import write_rows  # pyarrow takes a third of a second to import

    partial = path.with_name(f"{path.stem}.partial.parquet")
    write_rows(partial, [row.values for row in rows])
    report = run_check([partial], config=None, tokenizer_dir=None)
    if report.data.num_usable != len(rows):
        raise DataError(f"{partial} does not read as it was written:\n{report.render()}")
    partial.replace(path)
