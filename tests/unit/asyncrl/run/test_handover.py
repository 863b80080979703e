"""The configuration that a child reads says the same as its parent's, from any directory."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from asyncrl.config import BufferConfig, Config, DataConfig, RewardConfig, RolloutConfig, RunConfig, WeightsyncConfig
from asyncrl.config.tools import ToolsConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs.rewards import RewardPool
from asyncrl.run.handover import read_config, write_config
from asyncrl.schedule import MODES
from tests.support.event_loop import in_event_loop


def test_relative_paths_become_absolute_before_another_directory_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B183: a reward file given relative to the command's directory is found by a worker in another one."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    (home / "rewards").mkdir(parents=True)
    elsewhere.mkdir()
    monkeypatch.chdir(home)
    config = Config(
        run=RunConfig(dir=Path("run")),
        data=DataConfig(train_files=(Path("train.jsonl"),)),
        rollout=RolloutConfig(reward=RewardConfig(file=Path("rewards/my.py"))),
        weightsync=WeightsyncConfig(directory="weights", stage_dir="stage"),
    )
    written = write_config(config, Path("run/logs/config.json"))
    monkeypatch.chdir(elsewhere)
    read = read_config(written)
    assert read.rollout.reward.file == home / "rewards" / "my.py"
    assert read.data.train_files == (home / "train.jsonl",)
    assert read.run.directory == home / "run"
    assert (read.weightsync.directory, read.weightsync.stage_dir) == (str(home / "weights"), str(home / "stage"))


def test_code_of_ones_own_is_found_from_another_directory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tools = ToolsConfig(functions=("own/tools.py:add", "package.module:sub"), config_path=Path("tool_config.yaml"))
    for environment, found in (("own/env.py:Own", f"{tmp_path}/own/env.py:Own"), ("single_turn", "single_turn")):
        config = Config(rollout=RolloutConfig(environment=environment, tools=tools))
        read = read_config(write_config(config, tmp_path / "config.json"))
        assert read.rollout.environment == found
        assert read.rollout.tools.functions == (f"{tmp_path}/own/tools.py:add", "package.module:sub")
        assert read.rollout.tools.config_path == tmp_path / "tool_config.yaml"


def test_a_url_is_no_path(tmp_path: Path) -> None:
    config = Config(weightsync=WeightsyncConfig(directory="s3://bucket/run"))
    assert read_config(write_config(config, tmp_path / "config.json")).weightsync.directory == "s3://bucket/run"


def test_secrets_arrive_in_a_file_of_this_users(tmp_path: Path) -> None:
    config = Config(buffer=BufferConfig(url=SecretStr("redis://:geheim@10.0.0.9")))
    path = write_config(config, tmp_path / "config.json")
    assert path.stat().st_mode & 0o777 == 0o600
    url = read_config(path).buffer.url
    assert url is not None
    assert url.get_secret_value() == "redis://:geheim@10.0.0.9"


@in_event_loop
async def test_the_scorer_that_was_given_is_what_a_worker_asks_in_every_mode(tmp_path: Path) -> None:
    """B187: a reward of one's own is not replaced by the table's when a run is asynchronous."""
    file, row = tmp_path / "my.py", PromptRow(0, "openai/gsm8k", ({"role": "user", "content": "1+1"},), "2", {})
    file.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 0.25\n")
    pools = []
    for mode in MODES:
        config = Config(mode=mode, rollout=RolloutConfig(reward=RewardConfig(file=file, workers=1)))
        pools.append(RewardPool.of(read_config(write_config(config, tmp_path / "config.json")).rollout.reward))
    assert [list(pool.calls) for pool in pools] == [["file"]] * len(MODES)
    try:
        answer = await pools[-1].score(row, "#### 2")
    finally:
        pools[-1].close()
        await pools[-1].close_connections()
    assert answer.value == 0.25, "the table would give 1"
