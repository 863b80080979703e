"""Files of groups: what goes in comes back bit for bit, and what is not such a file is refused by what it has."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from asyncrl.data import group_files
from asyncrl.data.group_columns import GroupRecord
from asyncrl.data.group_files import GroupFile, GroupFileWriter
from asyncrl.data.policies import GREEDY_BASELINE
from asyncrl.errors import DataError
from buffer import Group
from tests.support.groups import group
from tests.support.rich_groups import rich_group

ABOUT = {"run": "r", "version": "2.5"}


def write(path: Path, groups: Sequence[Group], **options: object) -> Path:
    with GroupFileWriter(path, ABOUT, **options) as writer:
        for one in groups:
            writer.add(GroupRecord(one, "ready", lag=1, age_s=2.5))
    return path


def read(path: Path) -> list[Group]:
    return [stored.as_group(stored.ordinal, stored.attempt) for stored in GroupFile(path).groups()]


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as refused:
        list(GroupFile(path).groups())
    return str(refused.value)


def rewritten(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path)
    return path


def test_everything_that_a_group_can_hold_comes_back_bit_for_bit(tmp_path: Path) -> None:
    groups = [rich_group(0), rich_group(3, 2, num_trajectories=8), group(5, 1, (1 << 32,), (None, 1.0))]
    path = write(tmp_path / "groups.parquet", groups)
    assert read(path) == groups
    file = GroupFile(path)
    assert file.sizes == [3, 8, 2]
    assert file.about == {"schema": 1, **ABOUT}


def test_a_greedy_answer_comes_back_as_one_and_does_not_make_a_group_larger(tmp_path: Path) -> None:
    (one, two), greedy = group(0, 1, (1 << 32,)).trajectories, group(1, 1, (1 << 32,)).trajectories[0]
    with_greedy = Group(0, 1, "toy", (one, two, replace(greedy, policy=GREEDY_BASELINE)))
    path = write(tmp_path / "groups.parquet", [with_greedy, group(2, 1, (1 << 32,))])
    assert read(path)[0] == with_greedy
    assert (GroupFile(path).sizes, GroupFile(path).answers) == ([3, 2], [2, 2])


def test_a_person_finds_rewards_versions_and_texts_in_plain_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "groups.parquet", [rich_group(4)], text=lambda ids: f"{len(ids)} tokens")
    rows = pq.read_table(path).to_pylist()
    assert [row["gid"] for row in rows] == ["4.1"] * 3
    assert [row["reward"] for row in rows] == [-0.05, None, 0.15000000000000002]
    assert (rows[0]["state"], rows[0]["lag"], rows[0]["age_s"], rows[0]["num_sampled"]) == ("ready", 1, 2.5, 6)
    (first,) = rows[0]["rows"]
    assert first["text"] == "8 tokens"
    assert [(span["version"], span["num_tokens"]) for span in first["spans"]] == [("1.3", 3), ("2.5", 3)]
    assert first["spans"][0]["digest"] == f"{(1 << 64) - 1 - 40:016x}"


def test_memory_is_bounded_by_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = group(0, 1, (1 << 32,))
    monkeypatch.setattr(group_files, "FLUSH_BYTES", 3 * group_files._num_bytes(one.trajectories[0]))
    path = write(tmp_path / "groups.parquet", [group(i, 1, (1 << 32,)) for i in range(10)])
    sizes = [pq.ParquetFile(path).metadata.row_group(i).num_rows for i in range(5)]
    assert sizes == [4, 4, 4, 4, 4], "two groups of two trajectories are written out together"
    assert [one.ordinal for one in read(path)] == list(range(10))


def test_groups_larger_than_a_batch_are_put_together_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_files, "READ_TRAJECTORIES", 3)
    groups = [rich_group(i, num_trajectories=8) for i in range(3)]
    assert read(write(tmp_path / "groups.parquet", groups)) == groups


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def interrupted() -> None:
        with GroupFileWriter(tmp_path / "groups.parquet", ABOUT) as writer:
            writer.add(GroupRecord(rich_group(0)))
            assert not (tmp_path / "groups.parquet").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_lost_only_on_request(tmp_path: Path) -> None:
    path = write(tmp_path / "groups.parquet", [rich_group(0)])
    with pytest.raises(DataError, match="exists already"):
        GroupFileWriter(path, ABOUT)
    assert read(write(path, [rich_group(1)], overwrite=True)) == [rich_group(1)]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing/groups\.parquet cannot be written"):
        write(tmp_path / "missing" / "groups.parquet", [rich_group(0)])


def test_no_groups_make_a_file_without_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "groups.parquet", [])
    assert read(path) == []
    assert GroupFile(path).sizes == []


def test_what_another_program_wrote_with_wider_types_is_read(tmp_path: Path) -> None:
    groups = [rich_group(0), rich_group(1)]
    table = pq.read_table(write(tmp_path / "groups.parquet", groups))
    for name in ("data_source", "extra_info"):
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(pa.large_string()))
    rows = pa.large_list(table.schema.field("rows").type.value_type)
    table = table.set_column(table.schema.get_field_index("rows"), "rows", table["rows"].cast(rows))
    path = rewritten(tmp_path / "wide.parquet", table.drop_columns(["gid", "state"]).replace_schema_metadata(None))
    assert read(path) == groups
    assert GroupFile(path).about == {}


def test_what_is_no_file_of_groups_is_refused_by_what_it_is(tmp_path: Path) -> None:
    assert "no.parquet does not exist" in refusal(tmp_path / "no.parquet")
    text = tmp_path / "rows.parquet"
    text.write_text('{"prompt": 1}\n{"prompt": 2}\n')
    assert "is JSON" in refusal(text) or "not parquet" in refusal(text)
    whole = write(tmp_path / "groups.parquet", [rich_group(0)])
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(whole.read_bytes()[:-100])
    assert "cut.parquet is not a complete parquet file" in refusal(cut)
    other = refusal(rewritten(tmp_path / "other.parquet", pa.table({"prompt": ["a"], "answer": ["b"]})))
    assert "no column 'ordinal'" in other
    assert "its columns are prompt, answer" in other
    table = pq.read_table(whole)
    wrong = table.set_column(table.schema.get_field_index("rows"), "rows", pa.array(["x"] * table.num_rows))
    assert "column 'rows' of type string, expected list<" in refusal(rewritten(tmp_path / "wrong.parquet", wrong))


def test_a_newer_schema_is_refused_with_both_numbers(tmp_path: Path) -> None:
    table = pq.read_table(write(tmp_path / "groups.parquet", [rich_group(0)]))
    newer = rewritten(tmp_path / "newer.parquet", table.replace_schema_metadata({b"asyncrl_groups": b'{"schema": 2}'}))
    assert "schema 2, this version reads 1" in refusal(newer)


def test_a_group_in_pieces_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    table = pq.read_table(write(tmp_path / "groups.parquet", [rich_group(0), rich_group(1)]))
    without = rewritten(tmp_path / "without.parquet", table.filter(pc.field("reward").is_valid()))
    with pytest.raises(DataError, match=r"row 1: .* expected trajectories of group 0\.1: 2 are missing"):
        GroupFile(without)
    apart = rewritten(tmp_path / "apart.parquet", table.sort_by("trajectory"))
    with pytest.raises(DataError, match="sorted by ordinal, attempt and trajectory"):
        GroupFile(apart)
    with pytest.raises(DataError, match="the file ends"):
        GroupFile(rewritten(tmp_path / "short.parquet", table.slice(0, 5)))


def damaged(table: pa.Table, name: str, value: object) -> pa.Table:
    """The table with one value of its second row replaced."""
    values = table[name].to_pylist()
    values[1] = value
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values, table.schema.field(name).type))


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("finish_reason", "tired", "Trajectory.finish_reason = 'tired'"),
        ("reward_parts", "{", "reward_parts is not JSON"),
        ("extra_info", "[1]", "extra_info is JSON, but no object"),
        ("reward", 1.0, "exactly one of the two is set"),
        ("rows", None, "column 'rows' holds a null"),
        ("num_turns", None, "Trajectory.num_turns"),
    ],
)
def test_an_impossible_value_is_named_with_its_row(tmp_path: Path, column: str, value: object, said: str) -> None:
    table = pq.read_table(write(tmp_path / "groups.parquet", [rich_group(0), rich_group(1)]))
    found = refusal(rewritten(tmp_path / "bad.parquet", damaged(table, column, value)))
    assert said in found
    assert "bad.parquet row " in found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mask": None}, "rows.mask"),
        ({"token_ids": [1, None]}, "token_ids"),
        ({"spans": [{"version": "x", "digest": "0", "num_tokens": 6}]}, "not the label of a version"),
        ({"spans": [{"version": "1.0", "digest": "zz", "num_tokens": 6}]}, "not hexadecimal"),
        ({"columns": [{"name": "c", "dtype": "object", "shape": [8], "data": b"x" * 64}]}, "'c' is no object"),
        ({"columns": [{"name": "c", "dtype": "float32", "shape": [9], "data": b"x" * 32}]}, "'c' is no float32 [9]"),
    ],
)
def test_an_impossible_row_is_named(tmp_path: Path, change: dict[str, object], said: str) -> None:
    table = pq.read_table(write(tmp_path / "groups.parquet", [rich_group(0)]))
    (row, *_) = table["rows"].to_pylist()[1]
    assert said in refusal(rewritten(tmp_path / "bad.parquet", damaged(table, "rows", [{**row, **change}])))


def test_a_damaged_page_is_said_with_the_row_it_lies_behind(tmp_path: Path) -> None:
    path = write(tmp_path / "groups.parquet", [group(i, 1, (1 << 32,)) for i in range(200)])
    column = next(c for c in _chunks(path) if c.path_in_schema.startswith("rows.list.element.token_ids"))
    blob = bytearray(path.read_bytes())
    blob[column.data_page_offset + column.total_compressed_size - 20] ^= 0xFF
    path.write_bytes(bytes(blob))
    assert GroupFile(path).sizes == [2] * 200, "its form is sound"
    assert "groups.parquet is damaged behind row 0" in refusal(path)


def _chunks(path: Path) -> list[object]:
    found = pq.ParquetFile(path).metadata.row_group(0)
    return [found.column(i) for i in range(found.num_columns)]
