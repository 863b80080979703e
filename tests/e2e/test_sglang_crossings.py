"""Whole runs on the real SGLang whose answers are under way while versions come, with weightsync.kv = keep and = abort:
every token that the trainer was given has the logprob of the version that its span names.

The model is a random one in float32, whose answers are long, and a large learning rate keeps its versions far apart.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from asyncrl.config import Config
from asyncrl.load_config import load
from asyncrl.run.connections import open_weights
from asyncrl.run.existing import open_existing
from buffer import ReplayBuffer, Row
from tests.support.commands import CONFIG, Command, summary
from tests.support.local_models import LETTERS, make_model, make_tokenizer
from tests.support.sampled_by import logprobs_of
from tests.support.sglang_python import skip_without_sglang, warm_python
from weightsync.buckets import BucketPlan
from weightsync.reader import Reader
from weightsync.rebuild import bring_to_head
from weightsync.transport.base import Deadline

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

VERSIONS, CROSSINGS = 5, 16
ERROR = 2e-3
"""Nats; both sides compute in float32, in another order."""

REWARD = '''
def compute_score(data_source, solution_str, ground_truth, extra_info):
    """Of no use but to tell answers apart, so that every step has a gradient."""
    return sum(map(ord, solution_str)) % 7 / 7
'''


@pytest.fixture(autouse=True)
def sglang() -> None:
    skip_without_sglang()


def overrides(directory: Path, kv: str) -> list[str]:
    """A run of its own model, prompts and reward, with long answers and many versions."""
    model = directory / "model"
    made: Any = make_model("llama", tie_word_embeddings=False)  # of transformers, whose types say otherwise
    made.save_pretrained(model)
    PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(), eos_token="<|end|>").save_pretrained(model)
    (model / "chat_template.jinja").write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    rows = [{"prompt": LETTERS[i : i + 6], "data_source": "any", "ground_truth": "x"} for i in range(40)]
    (directory / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "reward.py").write_text(REWARD)
    return [
        *(f"run.dir={directory / 'run'}", f"run.name={kv}", f"weightsync.kv={kv}", "weightsync.keep_deltas=64"),
        *("starter=null", f"model.path={model}", "model.wire_dtype=float32", "metrics.sinks=[]"),
        *(f"data.train_files=[{directory / 'train.jsonl'}]", "data.val_files=[]", "data.max_prompt_tokens=8"),
        *(f"rollout.reward.file={directory / 'reward.py'}", "rollout.n=4", "rollout.slots=16"),
        *("rollout.max_new_tokens=240", "inference.context_length=256", "inference.max_running_requests=8"),
        *("inference.engine=sglang", f"inference.python={warm_python()}", "schedule.groups_per_step=2"),
        *("staleness.limit=8", "actor.lr=0.01", "actor.warmup_steps=0", "eval.every_versions=0"),
        # A request that is sent before an update and begun after it would find its prompt read by other versions.
        "inference.extra_args=[--disable-radix-cache]",
        # What was trained on stays in the buffer until a checkpoint holds it.
        *("trainer.steps=100000", "trainer.checkpoint.every_steps=100000", "cluster.stop_timeout_s=15"),
    ]


def served_models(config: Config, url: str) -> tuple[dict[int, nn.Module], dict[int, int]]:
    """Every version that was published so far, as the servers were given it; and the digests of their weights."""
    log, transport = open_weights(config, url)
    try:
        reader, records = Reader(log, transport, config.weightsync.seal_key()), log.records()
        models: dict[int, nn.Module] = {}
        for count, record in enumerate(records, start=1):
            plan = BucketPlan.whole(reader.manifest(record.layout), config.weightsync.bucket_words)
            snapshot = bring_to_head(None, records[:count], plan, 0, reader, Deadline(60.0, "test"))
            assert snapshot.digest() == record.digest
            words = {spec.name: np.zeros(spec.num_words, np.uint32) for spec in plan.manifest.tensors}
            for bucket in snapshot.buckets:
                at = 0
                for segment in bucket.segments:
                    words[segment.tensor][segment.start : segment.start + segment.words] = snapshot.words[bucket.id][
                        at : at + segment.words
                    ]
                    at += segment.words
            model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32).eval()
            weights = {
                spec.name: torch.from_numpy(words[spec.name].view(np.float32)).view(spec.shape)
                for spec in plan.manifest.tensors
            }
            model.load_state_dict(weights)
            models[record.version] = model
        return models, {record.version: record.digest for record in records}
    finally:
        log.close()


def rows_of(buffer: ReplayBuffer) -> list[Row]:
    """What was sampled and trained on."""
    groups = [buffer.fetch(held.entry) for held in buffer.groups("leased")]
    return [row for group in groups for trajectory in group.trajectories for row in trajectory.rows]


def num_crossing(buffer: ReplayBuffer) -> int:
    """Rows among them whose answer was under way while a version came, once there are VERSIONS of them."""
    if int(buffer.status().version.partition(".")[2]) < VERSIONS:
        return 0
    return sum(len(row.spans) > 1 for row in rows_of(buffer))


def error_of(models: Mapping[int, nn.Module], row: Row, *, keeps: bool) -> float:
    """Nats by which a logprob of the row is off, at most."""
    told = torch.from_numpy(row.logprobs[row.num_prompt_tokens :])
    return float((told - logprobs_of(models, row, keeps=keeps)).abs().max())


@pytest.mark.parametrize("kv", ["keep", "abort"])
def test_every_token_is_of_the_version_that_it_names_however_answers_cross_versions(kv: str, tmp_path: Path) -> None:
    keys = overrides(tmp_path, kv)
    config = load(CONFIG, keys).config
    started = []
    try:
        for name in ("serve-rollout", "train"):
            started.append(Command([name, str(CONFIG), *keys], tmp_path / f"{name}.out"))
        rollout, train = started
        train.until("its Redis runs", lambda: (config.run.directory / "metrics.jsonl").exists())
        with open_existing(config) as (buffer, url):
            train.until("versions came while answers were under way", lambda: num_crossing(buffer) >= CROSSINGS)
            rows, (models, digests) = rows_of(buffer), served_models(config, url)
        assert rollout.terminate() == 0, rollout.text()
        assert train.terminate() == 0, train.text()
    finally:
        for one in started:
            one.close()
    assert summary(config.run.directory)["audit_ok"] is True
    crossing = [row for row in rows if len(row.spans) > 1]
    assert len(crossing) >= CROSSINGS
    for row in rows:
        assert [span.digest for span in row.spans] == [digests[span.version] for span in row.spans]
    assert max(error_of(models, row, keeps=kv == "keep") for row in rows) <= ERROR
    assert max(error_of(models, row, keeps=kv != "keep") for row in crossing) > 0.1, "it matters which"
