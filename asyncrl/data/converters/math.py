"""MATH: competition problems whose solutions end in a box.

Reads what is published: folders of JSON files with `problem`, `solution`, `level` and `type` (train/algebra/1.json),
or JSON Lines or Parquet files of the same columns.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from asyncrl.data.boxes import has_box, last_box
from asyncrl.data.converters.base import ConvertedRow, Converter, Settings, Unusable, verl_row
from asyncrl.data.converters.records import FoundRecord, rows_of, text_of
from asyncrl.data.values import Json, excerpt

INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
DATA_SOURCE = "DigitalLearningGmbH/MATH-lighteval"


def convert(path: Path | None, settings: Settings) -> Iterator[ConvertedRow | Unusable]:
    """A row for each problem with a boxed answer; the others are named."""
    return rows_of(path, partial(_row, settings.get("instruction", INSTRUCTION)))


def _row(instruction: str, record: FoundRecord, index: int) -> ConvertedRow | Unusable:
    problem, solution = text_of(record, "problem"), text_of(record, "solution")
    if isinstance(problem, Unusable):
        return problem
    if isinstance(solution, Unusable):
        return solution
    answer = last_box(solution)
    if answer is None or not answer.strip():
        what = "a box that is empty or not closed" if has_box(solution) else "no box"
        return Unusable(record.place, "no_answer", f"its solution has {what}: ...{excerpt(solution[-60:])!r}")
    extra: dict[str, Json] = {"split": record.split, "index": index, "problem": problem, "solution": solution}
    for key in ("level", "type"):
        value = record.values.get(key)
        extra[key] = value if isinstance(value, str) else ""
    values = verl_row(
        data_source=DATA_SOURCE,
        prompt=f"{problem} {instruction}".rstrip(),
        ability="math",
        ground_truth=answer.strip(),
        extra_info=extra,
    )
    return ConvertedRow(record.split, record.place, values, solution=solution)


CONVERTER = Converter(
    description="MATH: problem and boxed solution, as folders of JSON files, JSON Lines or Parquet",
    convert=convert,
    settings={"instruction": "what follows the problem in the prompt; empty: nothing"},
)
