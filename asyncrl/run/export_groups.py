"""Write the groups that a buffer holds to a file, one at a time, and say which could not be read."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.data.group_columns import GroupRecord, Text
from asyncrl.data.group_files import GroupFileWriter
from buffer import CorruptPayload, ReplayBuffer, UnknownSchema
from buffer.operator_side import WITH_PAYLOAD, HeldGroup


@dataclass
class ExportReport:
    """What was written, and what was not.

    Attributes:
        by_state: state -> groups written.
        unread: groups whose payload is missing or damaged: state, gid and what was found.
        moved_on: groups that left the buffer between being listed and being read: nothing is wrong with them.
    """

    num_trajectories: int = 0
    num_tokens: int = 0
    by_state: Counter[str] = field(default_factory=Counter)
    unread: list[dict[str, str]] = field(default_factory=list)
    moved_on: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:  # plain data for json.dump
        """Plain data."""
        return {
            "num_groups": self.by_state.total(),
            "num_trajectories": self.num_trajectories,
            "num_tokens": self.num_tokens,
            "by_state": dict(self.by_state),
            "unread": self.unread,
            "moved_on": self.moved_on,
        }


def export_groups(
    buffer: ReplayBuffer,
    path: Path,
    *,
    states: Sequence[str] = WITH_PAYLOAD,
    first: int | None = None,
    text: Text | None = None,
    overwrite: bool = False,
) -> ExportReport:
    """Write the groups in `states`, by ordinal; memory is bounded by the largest group and a few megabytes.

    Args:
        first: at most this many groups.
        text: decodes tokens, for a column of texts.
    Raises:
        DataError: the file exists, or cannot be written; nothing is left of it.
    """
    record = buffer.record()
    about = {
        "run": buffer.run,
        "version": buffer.status().version,
        "record": None if record is None else record.to_fields(),
    }
    report, failed = ExportReport(), list[tuple[HeldGroup, str]]()
    with GroupFileWriter(path, about, text=text, overwrite=overwrite) as writer:
        for shown in buffer.groups(*states)[:first]:
            try:
                group = buffer.fetch(shown.entry)
            except (CorruptPayload, UnknownSchema) as error:
                failed.append((shown, str(error)))
                continue
            entry = shown.entry
            writer.add(GroupRecord(group, shown.state, entry.lag, entry.age_s, shown.reason, shown.error))
            report.by_state[shown.state] += 1
            report.num_trajectories += len(group.trajectories)
            report.num_tokens += sum(t.num_tokens for t in group.trajectories)
    _sort_out(buffer, failed, report)
    return report


def _sort_out(buffer: ReplayBuffer, failed: Sequence[tuple[HeldGroup, str]], report: ExportReport) -> None:
    """A run goes on while it is exported: a payload that nothing names any more is no loss."""
    named = {shown.entry.key for shown in buffer.groups()} if failed else set()
    for shown, error in failed:
        if shown.entry.key in named:
            report.unread.append({"state": shown.state, "gid": shown.entry.gid, "found": error})
        else:
            report.moved_on.append(shown.entry.gid)
