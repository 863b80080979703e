"""An export of a run that goes on: what left the buffer meanwhile is no loss, what is broken is."""

from pathlib import Path

import pytest

from asyncrl.data.group_files import GroupFile
from asyncrl.run.export_groups import export_groups
from buffer import Entry, Group
from tests.support.buffer_run import BufferRun


def test_groups_that_are_trained_while_they_are_exported_are_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = BufferRun(None).recover(limit=1, per_version=2)
    run.make(4)
    fetch = run.buffer.fetch

    def fetch_behind_a_step(entry: Entry) -> Group:
        if entry.ordinal == 1 and run.number == 0:  # the batch 0, 1 is trained and committed before 1 is read
            run.checkpoint(run.train())
        return fetch(entry)

    monkeypatch.setattr(run.buffer, "fetch", fetch_behind_a_step)
    report = export_groups(run.buffer, tmp_path / "groups.parquet")
    assert (report.moved_on, report.unread) == (["1.1"], [])
    assert dict(report.by_state) == {"ready": 3}
    assert [stored.ordinal for stored in GroupFile(tmp_path / "groups.parquet").groups()] == [0, 2, 3]
    assert GroupFile(tmp_path / "groups.parquet").about["run"] == run.name
    run.close()
