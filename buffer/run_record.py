"""The run record: what must be the same for everybody who works on a run, written once and compared ever after."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from buffer.errors import RunMismatch


@dataclass(frozen=True, slots=True)
class RunRecord:
    """An empty string is unknown to this caller: it is not compared, and filled in by whoever knows it."""

    schema: int
    """Major schema number of the payloads."""
    dataset: str
    """Fingerprint of the dataset."""
    seed: int
    group_size: int
    order: str
    """staleness.order: oldest or ordinal."""
    tokenizer: str
    """Hash of tokenizer and chat template."""
    layout: str = ""
    """Hash of the weights' layout: names, shapes, dtypes, tie map."""

    def to_fields(self) -> dict[str, str]:
        """As the ledger stores it."""
        return {name: str(value) for name, value in asdict(self).items()}

    @classmethod
    def from_fields(cls, stored: Mapping[str, str]) -> "RunRecord":
        """The record that the ledger stores."""
        integers = {f.name for f in fields(cls) if f.type is int}
        values = {f.name: stored.get(f.name, "") for f in fields(cls)}
        return cls(**{name: int(value) if name in integers else value for name, value in values.items()})  # type: ignore[arg-type]  # by name


def check_same(run: str, mine: RunRecord, stored: Mapping[str, str]) -> None:
    """Compare field by field, in the order of the record.

    Raises:
        RunMismatch: naming the first field that differs, with both values.
    """
    for name, value in mine.to_fields().items():
        known = stored.get(name, "")
        if value and known and value != known:
            raise RunMismatch(
                f"run {run!r} was started with {name} = {known}, this process has {name} = {value}. Groups of the "
                "two would be "
                "mixed. Use the same setting on both sides, or another run.name."
            )
