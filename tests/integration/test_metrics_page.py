"""docs/metrics.md names every metric that a trainer writes, so that nobody has to guess what a line means."""

import re
from itertools import product
from pathlib import Path

import pytest

from asyncrl.trainer.group_metrics import left
from asyncrl.trainer.masked import name_of
from asyncrl.trainer.metric_names import renamed
from buffer import staleness
from buffer.answers import Entry, LeftGroup
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import make_buffer, make_config, rollout_for, start_trainer

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
LISTED_BY_THE_PROTOCOL = {
    "training/off_policy/lag/1",
    "buffer/left_frac/stale",
    "buffer/left_frac/response_length/le_24",
    "buffer/age_s/mean",
    "training/off_policy/lag_1/ess",
    "perf/buffer/denied/window",
    "perf/buffer/resident_bytes",
}


def patterns() -> list[re.Pattern[str]]:
    """The names in the first column of the tables, {a,b} written out, <...> for anything."""
    found = []
    for text in PAGE.read_text().splitlines():
        if text.startswith("| `"):
            for name in re.findall(r"`([^`]+)`", text.split(" | ")[0]):
                parts = [part.split(",") if i % 2 else [part] for i, part in enumerate(re.split(r"[{}]", name))]
                found += ["".join(chosen) for chosen in product(*parts)]
    return [re.compile(re.sub(r"<[^>]+>", ".+", re.escape(name).replace("\\", "")) + r"\Z") for name in found]


def is_documented(name: str) -> bool:
    return any(pattern.match(name) for pattern in patterns())


def test_every_metric_of_a_run_is_on_the_page(tmp_path: Path) -> None:
    model_dir = write_tiny_model(tmp_path / "model")
    algorithm = {"name": "m2po", "kl_coef": 0.1, "entropy_coef": 0.01, "reward_kl_coef": 0.01, "overlong_buffer": 2}
    config = make_config(tmp_path / "run", model_dir, algorithm=algorithm, trainer={"steps": 3})
    run = start_trainer(config, make_buffer(config), heldout=2)
    with rollout_for(run).running():
        run.go()
    names = {name for _, _, values in run.sink.lines for name in values}
    assert len(names) > 100
    assert sorted(name for name in names if not is_documented(name)) == []


def test_what_leaves_and_what_is_masked_is_on_the_page() -> None:
    gone = LeftGroup(1, 1, "stale", "waiting", 3, (20, 30), (15, 25), "openai/gsm8k")
    kept = Entry(2, 1, "key", 1, "hash", 0, (20,), (15,), (1.0,), "openai/gsm8k", 1.0)
    names = {*left([gone], [kept]), name_of("past_limit", "openai/gsm8k")}
    names |= {*renamed({"reject/token_frac": 0.0, "reject/seq_frac": 0.0, "weights/frac_out_of_bounds": 0.0})}
    assert sorted(name for name in names if not is_documented(name)) == []


@pytest.mark.parametrize("name", sorted(LISTED_BY_THE_PROTOCOL))
def test_the_metrics_of_the_protocol_are_on_the_page_by_themselves(name: str) -> None:
    assert is_documented(name)
    assert not is_documented(f"un{name}")


def test_the_example_of_the_staleness_page_is_what_the_rules_say() -> None:
    """limit = 1, B = 4, version 10 is trained: groups 1 to 4 start at 9 or later, groups 5 to 8 at 10 or later."""
    assert "limit = 1, B = 4, version 10 is trained. The window is 8." in (PAGE.parent / "staleness.md").read_text()
    assert staleness.window(1, 4) == 8
    assert [staleness.start_from(10, ahead, 0, 4, 1) for ahead in range(8)] == [9] * 4 + [10] * 4
    assert staleness.lag(staleness.due(10, 4, 0, 4), 9) == 2
