"""The example of docs/environments.md works as it stands there."""

import asyncio
import json
from pathlib import Path

from asyncrl.config import RolloutConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs import EnvironmentDeps, Resumable, Reward
from asyncrl.envs.lookup import find_environment
from asyncrl.envs.rewards import RewardPool

DOCS = Path(__file__).resolve().parents[4] / "docs" / "environments.md"
ROW = PromptRow(0, "hangman", ({"role": "user", "content": "___"},), "tea", {})


def test_the_example_plays_ends_and_goes_on_elsewhere(tmp_path: Path) -> None:
    code = DOCS.read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "hangman.py").write_text(code)
    make = find_environment(f"{tmp_path / 'hangman.py'}:Hangman")
    deps = EnvironmentDeps(RewardPool(1, 5.0), RolloutConfig(max_turns=4))

    async def check() -> None:
        one, other = make(deps), make(deps)
        assert await one.reset(ROW, seed=0) == ROW.messages
        assert (await one.step("a", "stop")).messages == ({"role": "user", "content": "__a"},)
        assert (await one.step(" x", "stop")).messages == ({"role": "user", "content": "__a"},)
        assert isinstance(one, Resumable)
        assert isinstance(other, Resumable)
        await other.restore(ROW, seed=0, state=json.loads(json.dumps(one.snapshot())))
        assert (await other.step("t", "stop")).messages == ({"role": "user", "content": "t_a"},)
        assert (await other.step("e", "stop")).reward == Reward(1.0)
        await one.step("q", "stop")
        assert (await one.step("w", "stop")).reward == Reward(0.0)

    asyncio.run(check())
    assert len(code.splitlines()) <= 40
