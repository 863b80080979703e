"""GSM8K: grade-school problems whose answers end in `#### number`.

Reads what is published: JSON Lines with `question` and `answer` (train.jsonl, test.jsonl), or the Parquet files of the
same columns.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from asyncrl.data.answers import MARKER, canonical, final_number
from asyncrl.data.converters.base import ConvertedRow, Converter, Settings, Unusable, verl_row
from asyncrl.data.converters.records import FoundRecord, rows_of, text_of
from asyncrl.data.values import excerpt

INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
DATA_SOURCE = "openai/gsm8k"


def convert(path: Path | None, settings: Settings) -> Iterator[ConvertedRow | Unusable]:
    """A row for each problem with a final number; the others are named."""
    return rows_of(path, partial(_row, settings.get("instruction", INSTRUCTION)))


def _row(instruction: str, record: FoundRecord, index: int) -> ConvertedRow | Unusable:
    question, answer = text_of(record, "question"), text_of(record, "answer")
    if isinstance(question, Unusable):
        return question
    if isinstance(answer, Unusable):
        return answer
    number = final_number(answer)
    if number is None:
        what = "no final number" if MARKER in answer else f"no {MARKER} before its final number"
        return Unusable(record.place, "no_answer", f"its answer has {what}: ...{excerpt(answer[-60:])!r}")
    values = verl_row(
        data_source=DATA_SOURCE,
        prompt=f"{question} {instruction}".rstrip(),
        ability="math",
        ground_truth=canonical(number),
        extra_info={"split": record.split, "index": index, "question": question, "answer": answer},
    )
    return ConvertedRow(record.split, record.place, values, solution=answer)


CONVERTER = Converter(
    description="GSM8K: question and answer with `#### number`, as JSON Lines or Parquet",
    convert=convert,
    settings={"instruction": "what follows the question in the prompt; empty: nothing"},
)
