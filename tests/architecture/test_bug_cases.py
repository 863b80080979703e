"""What went wrong in other systems of this kind is under test here: every case of these areas is named by a test.

A test names a case by its id, in its docstring, beside a parameter or in a comment of its body; `grep -rn B017 tests`
finds it. So does a promise, which tests hold every implementation of a seam to (tests/support/*_promises.py).

Areas: buffer B001 to B020, staleness B021 to B041, weightsync B042 to B071, algorithms B072 to B087, data B088 to B102,
tokenizer B103 to B114, rewards B115 to B131, agent B132 to B138, tools B139 to B149, checkpoint B150 to B158, resume
B159 to B169, config B170 to B177, cli B178 to B182, ray B183 to B187, redis B188 to B196, metrics B197 to B203, sglang
B204 to B214, security B215 to B221.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
_ID = re.compile(r"\bB[0-9]{3}\b")

CASES = {
    "B001": "retry duplicates a push",
    "B002": "retry loses a pop",
    "B003": "consumer dies between take and train",
    "B004": "reclaim depends on consumer name",
    "B005": "trimmed stream hands out tombstones",
    "B006": "silent group loss on one failed member",
    "B007": "one straggler wedges the step",
    "B008": "consumer never learns that producers died",
    "B009": "group stuck at N-1 forever",
    "B010": "ragged rows become 2-D arrays",
    "B011": "payload types change on the wire",
    "B012": "integers beyond 64 bits",
    "B013": "tuple and int keys not preserved",
    "B014": "lone surrogate in model text",
    "B015": "NaN in transport",
    "B016": "two trainers split a group",
    "B017": "capacity and version window mixed",
    "B018": "read races with a clear",
    "B019": "clear is not idempotent",
    "B020": "batch of exactly one or zero",
    "B021": "boundary off by one",
    "B022": "missing version treated as fresh",
    "B023": "version stamped after generation",
    "B024": "version goes backwards",
    "B025": "capacity inflates after resume",
    "B026": "double scaling leaves zero capacity",
    "B027": "zero staleness computes zero in-flight",
    "B028": "threshold zero is still one step off",
    "B029": "unit mismatch batches vs updates",
    "B030": "FIFO drift when trainer is slow",
    "B031": "stale drop shrinks the batch silently",
    "B032": "drop with no replacement starves",
    "B033": "requeued prompt keeps old fragments",
    "B034": "wait mode deadlock",
    "B035": "trainer jumps ahead",
    "B036": "group version is mixed",
    "B037": "metric counts straggler wait wrongly",
    "B038": "bool/str accepted as limit",
    "B039": "finished work still holds a reservation",
    "B040": "lock held while waiting for capacity",
    "B041": "pause drains everything before resuming",
    "B042": "failed apply swallowed",
    "B043": "version bumped after failed apply",
    "B044": "partial multi-chunk publish",
    "B045": "fleet left mixed",
    "B046": "value diff misses signed zero",
    "B047": "additive delta is not exact",
    "B048": "NaN used as 'not sent' marker",
    "B049": "base mismatch accepted",
    "B050": "pruned delta chain replayed",
    "B051": "duplicate delivery applied twice",
    "B052": "tied head left stale",
    "B053": "new or restarted server serves base weights",
    "B054": "KV cache kept across update",
    "B055": "flush fails while requests pending",
    "B056": "retry loop without sleep",
    "B057": "server resumed after failed update",
    "B058": "pause without a paired resume",
    "B059": "mid-forward update corrupts logprobs",
    "B060": "full_tensor on plain tensors",
    "B061": "uneven shard offsets",
    "B062": "rank with an empty shard",
    "B063": "flat index overflows int32",
    "B064": "no change still costs a publish",
    "B065": "diff taken before the cast",
    "B066": "names differ trainer vs server",
    "B067": "cleanup deletes a version being loaded",
    "B068": "checksum never verified",
    "B069": "stub on rank 0 only",
    "B070": "change detector looks at half the bits",
    "B071": "snapshot seeded from other bytes",
    "B072": "std of one sample is NaN",
    "B073": "equal rewards blow up",
    "B074": "masked member still shifts the baseline",
    "B075": "unscored sample poisons the group",
    "B076": "all reward functions abstain",
    "B077": "mean of micro-batch means",
    "B078": "double division by accumulation steps",
    "B079": "divisor follows padded length",
    "B080": "fully masked row divides by zero",
    "B081": "batch-level std used as group flag",
    "B082": "sequence product of ratios",
    "B083": "logprobs at another temperature",
    "B084": "truncated support bias",
    "B085": "group identity from prompt text",
    "B086": "same seed for every sibling",
    "B087": "ratio overflow",
    "B088": "array truth value in templates",
    "B089": "foreign keys padded with null",
    "B090": "first-row schema drops later keys",
    "B091": "null column then string",
    "B092": "mixed ground-truth types",
    "B093": "date-like strings become datetimes",
    "B094": "line split inside a string",
    "B095": "byte-order mark and CRLF",
    "B096": "error without position",
    "B097": "filtered dataset is empty",
    "B098": "length filter ignores tools",
    "B099": "truncation setting has no effect",
    "B100": "two readers disagree on duplicate keys",
    "B101": "empty or whitespace prompt",
    "B102": "unknown data source",
    "B103": "template call returns a mapping",
    "B104": "double start token",
    "B105": "re-tokenising the reply",
    "B106": "partial UTF-8 token",
    "B107": "turn separator lost",
    "B108": "old reasoning stripped",
    "B109": "arguments as a JSON string",
    "B110": "tool call with missing fields",
    "B111": "control tokens inside user text",
    "B112": "content None or missing",
    "B113": "no chat template",
    "B114": "padding aliased to end token",
    "B115": "signal timeout in a thread",
    "B116": "hung check occupies a worker",
    "B117": "timeout trained as zero",
    "B118": "exception trained as zero",
    "B119": "answer cut by a tail window",
    "B120": "sign lost",
    "B121": "number prefix matched",
    "B122": "thousands separator and currency",
    "B123": "repeated boxed answers joined",
    "B124": "unfinished final box",
    "B125": "false positive on tiny numbers",
    "B126": "empty equals empty",
    "B127": "markdown around the number",
    "B128": "last number wins wrongly",
    "B129": "parsed action lost on merge",
    "B130": "vector of wrong length",
    "B131": "non-float rewards",
    "B132": "loss on tool output",
    "B133": "tool calls cleared from history",
    "B134": "infrastructure failure scored as an answer",
    "B135": "subagent turns break linear merge",
    "B136": "context limit on turn k",
    "B137": "truncated by context reported as complete",
    "B138": "event-loop bound objects",
    "B139": "malformed arguments kill the rollout",
    "B140": "malformed arguments run with {}",
    "B141": "valid JSON of the wrong shape",
    "B142": "huge bad payload echoed",
    "B143": "endless retry",
    "B144": "one stuck tool blocks the turn",
    "B145": "truncation side reversed",
    "B146": "limit in characters vs tokens",
    "B147": "nested schema lost",
    "B148": "unknown tool name",
    "B149": "calculator escapes",
    "B150": "interrupted save looks complete",
    "B151": "destroy before write",
    "B152": "temp folder on another filesystem",
    "B153": "latest pointer ahead of data",
    "B154": "numeric order",
    "B155": "trainer saved, producer state not",
    "B156": "renamed file breaks old checkpoints",
    "B157": "retention deletes what is in use",
    "B158": "retention keeps broken ones",
    "B159": "epoch boundary trains nothing",
    "B160": "stale drop pins the cursor",
    "B161": "generated but untrained rollouts skipped",
    "B162": "position in samples vs prompts",
    "B163": "shuffle order changes",
    "B164": "loader prefetched before restore",
    "B165": "changed batch size",
    "B166": "warm-up starts again",
    "B167": "buffer of an earlier run reused",
    "B168": "progress skipped but version restored",
    "B169": "requested step absent",
    "B170": "exponent without a dot is a string",
    "B171": "words become booleans, zeros octal",
    "B172": "unknown key ignored",
    "B173": "key in the wrong section",
    "B174": "duplicate keys",
    "B175": "required option missing",
    "B176": "fixed limit vs configured cadence",
    "B177": "contradicting sizes",
    "B178": "failure exits 0",
    "B179": "orphans after a crash",
    "B180": "grandchildren survive",
    "B181": "SIGTERM reported as success or as crash",
    "B182": "finishes without doing the work",
    "B183": "relative paths in workers",
    "B184": "environment not propagated",
    "B185": "whole environment passed",
    "B186": "dead actor never noticed",
    "B187": "reward model overwritten by base init",
    "B188": "blocking wait longer than the socket timeout",
    "B189": "server gone during a blocking pop",
    "B190": "cancelled command shifts replies",
    "B191": "eviction of queue keys",
    "B192": "out of memory on push",
    "B193": "two commands in one transaction, one fails",
    "B194": "version counter doubled",
    "B195": "url with a password in logs",
    "B196": "foreign data under our key",
    "B197": "steps go backwards after resume",
    "B198": "auto-increment step",
    "B199": "values after clipping only",
    "B200": "old sequence number",
    "B201": "NaN/inf in JSONL",
    "B202": "zero printed as 0.0000",
    "B203": "idle time counted once only",
    "B204": "abort treated as stop",
    "B205": "abort in queue returns nothing",
    "B206": "error delivered as 200",
    "B207": "stop token missing from ids",
    "B208": "ids and logprobs differ in length",
    "B209": "logprob null or -inf",
    "B210": "missing auth header",
    "B211": "HTTP errors not checked",
    "B212": "two engines with the same seed",
    "B213": "new engine in rotation with wrong version",
    "B214": "long polling of version",
    "B215": "pickle from the network",
    "B216": "deny-list unpickler",
    "B217": "listening on all interfaces",
    "B218": "formula evaluated",
    "B219": "model code executed in-process",
    "B220": "unsafe YAML tags",
    "B221": "path from data escapes the folder",
}
"""Id -> what went wrong, in a few words."""


@cache
def named() -> dict[str, list[str]]:
    """Id -> the tests that name it, as file::test."""
    found: dict[str, list[str]] = {}
    for path in sorted([*TESTS.rglob("test_*.py"), *TESTS.rglob("*_promises.py")]):
        if path == Path(__file__):
            continue
        text = path.read_text()
        if not _ID.search(text):
            continue
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_run(path, node.name):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                body = "\n".join(lines[first - 1 : node.end_lineno])
                for case in set(_ID.findall(body)):
                    found.setdefault(case, []).append(f"{path.relative_to(TESTS.parent)}::{node.name}")
    return found


def _is_run(path: Path, function: str) -> bool:
    return not function.startswith("_") if path.name.endswith("_promises.py") else function.startswith("test_")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case} {CASES[case]}")
def test_a_case_is_named_by_a_test(case: str) -> None:
    assert named().get(case), (
        f"no test names {case} ({CASES[case]}). Write one for its kind, or name the id in the docstring of the one "
        "that is there."
    )
