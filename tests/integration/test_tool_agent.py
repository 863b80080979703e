"""tool_agent with real parts: a family's template and tokenizer, its form of calls, the catalogue, the rewards."""

from collections.abc import Mapping

import pytest

from asyncrl.config import RolloutConfig, ToolsConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs import ENVIRONMENTS, EnvironmentDeps
from asyncrl.envs.rewards import RewardPool
from asyncrl.envs.tools.calculator import Calculator
from asyncrl.envs.tools.parsers import TurnParser
from asyncrl.rollout.chat import ChatTemplate
from asyncrl.rollout.episode import EpisodePlayer, EpisodeTask, PromptMemo
from asyncrl.rollout.progress import Progress
from tests.support.chat_models import make_model_dir
from tests.support.conversations import Message
from tests.support.episode_settings import episode_settings
from tests.support.event_loop import in_event_loop
from tests.support.scripted_play import ScriptedFleet

ROW = PromptRow(0, "gsm8k", ({"role": "user", "content": "4*5, and 1/0?"},), "20", {})
CALLS: Mapping[str, tuple[str, str, int]] = {
    # what the model writes, the token that ends it, how many calls it may make at once
    "chatml": (
        '<tool_call>\n{"name": "calc", "arguments": {"expr": "4*5"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "calc", "arguments": {"expr": "1/0"}}\n</tool_call>',
        "<|im_end|>",
        2,
    ),
    "llama3": ('<|python_tag|>{"name": "calc", "parameters": {"expr": "4*5"}}', "<|eom_id|>", 1),
    "mistral_v3": (
        '[TOOL_CALLS] [{"name": "calc", "arguments": {"expr": "4*5"}}, {"name": "calc", "arguments": {"expr": "1/0"}}]',
        "</s>",
        2,
    ),
    "gpt_oss": (
        "<|channel|>analysis<|message|>The tool knows.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.calc json<|message|>{"expr": "4*5"}',
        "<|call|>",
        1,
    ),
}


@pytest.mark.parametrize("family", CALLS)
@in_event_loop
async def test_calls_in_a_familys_own_form_are_answered_and_the_conversation_reads_as_its_template_has_it(
    family: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chat = ChatTemplate.from_model_dir(make_model_dir(tmp_path_factory.mktemp(family), family))
    text, end, num_calls = CALLS[family]
    call = [*chat.encode(text), *chat.encode(end)]
    answer = [*chat.encode("it is #### 20"), chat.eos_ids[0]]
    fleet = ScriptedFleet((call, "stop"), (answer, "stop"))
    config = RolloutConfig(max_turns=3, tools=ToolsConfig(builtin=("calc",)))
    read_turn = TurnParser("auto", chat.source, in_thought=chat.opens_thought)
    rewards = RewardPool(workers=1, timeout_s=5)
    deps = EnvironmentDeps(rewards, config, read_turn=read_turn)
    settings = episode_settings(max_turns=3, context_length=2000, max_prompt_tokens=1000, max_new_tokens=200)
    player = EpisodePlayer(chat, fleet, lambda: ENVIRONMENTS["tool_agent"](deps), settings, deps.counts)
    task = EpisodeTask(ROW, "train", ordinal=0, episode=0, may_start_on=lambda version: True)
    trajectory = await player.play(task, Progress(), PromptMemo())
    await deps.resources.close()
    rewards.close()
    (row,) = trajectory.rows
    told: list[Message] = [
        {"role": "tool", "name": "calc", "tool_call_id": "c00010000", "content": "20"},
        {"role": "tool", "name": "calc", "tool_call_id": "c00010001", "content": "error: division by zero"},
    ][:num_calls]
    prompt = chat.render(ROW.messages, [Calculator.schema])
    assert row.token_ids.tolist() == [*prompt, *call, *chat.continuation(told, call[-1]), *answer]
    assert int(row.mask.sum()) == len(call) + len(answer)
    assert (trajectory.reward, trajectory.num_turns, trajectory.finish_reason) == (1.0, 2, "stop")
    assert player.counts["tool_calls_ok"] == 1
    assert player.counts["tool_calls_tool_error"] == num_calls - 1
