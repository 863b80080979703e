"""Tokens of a session are those that were sampled, whatever their text would encode to, in families of templates."""

import random
from pathlib import Path

import pytest

from asyncrl.rollout.chat import ChatTemplate
from tests.support.chat_models import make_model_dir
from tests.support.event_loop import in_event_loop
from tests.support.gateway_parts import SEARCH, GatewayParts, said, user
from tests.support.scripted_fleet import ScriptedFleet

WORDS = ("hello world", "the answer is", "Think step by step", " 2+2", "caf\u00e9 \u2764", "assistant", "\n\n")


def in_pieces(chat: ChatTemplate, text: str, source: random.Random) -> list[int]:
    """Ids of a text that was cut at random places, as a model may write it: seldom those of the whole text."""
    ids: list[int] = []
    while text:
        end = source.randint(1, 4)
        ids += chat.encode(text[:end])
        text = text[end:]
    return ids


@pytest.mark.parametrize("family", ["chatml", "llama3", "mistral_v3", "gemma", "gpt_oss"])
@in_event_loop
async def test_no_turn_of_a_conversation_is_tokenized_again(family: str, tmp_path: Path) -> None:
    """B105 of the public cases: decoding and encoding a reply is not the identity."""
    chat = ChatTemplate.from_model_dir(make_model_dir(tmp_path, family))
    source, num_others = random.Random(family), 0
    fleet = ScriptedFleet(encode=lambda text: in_pieces(chat, text, source), end=chat.eos_ids[-1])
    parts = GatewayParts(chat=chat, fleet=fleet, context_length=100_000)
    for _ in range(10):
        session, messages, answers = parts.session(), [], []
        for _ in range(source.randint(2, 6)):
            fleet.script.append("".join(source.choices(WORDS, k=3)))
            messages.append(user("".join(source.choices(WORDS, k=2)).strip() or "go on"))
            answers.append(await parts.ask(session, messages))
            messages.append(said(answers[-1]))
            num_others += chat.encode(answers[-1].text) != list(answers[-1].token_ids[:-1])
        (row,) = session.trajectory_rows()
        asked = [ids for ids, _ in fleet.asked[-len(answers) :]]
        ids = row.token_ids.tolist()
        for before, answer in zip(asked, answers, strict=True):
            end = len(before) + len(answer.token_ids)
            assert ids[:end] == [*before, *answer.token_ids]
            assert row.mask[len(before) : end].all()
        assert row.num_sampled == sum(len(answer.token_ids) for answer in answers)
        assert dict(session.forks) == {}
    assert num_others > 10, "the ids of answers are others than those of their texts"


@in_event_loop
async def test_calls_and_their_answers_stay_one_row_where_templates_look_for_the_calls(tmp_path: Path) -> None:
    chat = ChatTemplate.from_model_dir(make_model_dir(tmp_path, "chatml"))
    source = random.Random(0)
    fleet = ScriptedFleet(encode=lambda text: in_pieces(chat, text, source), end=chat.eos_ids[0])
    fleet.script.extend(
        ['I look.\n<tool_call>\n{"name": "search", "arguments": {"b": 1, "a": [2]}}\n</tool_call>', "It is there."]
    )
    parts = GatewayParts(chat=chat, fleet=fleet)
    session, messages = parts.session(), [user("find it")]
    called = await parts.ask(session, messages, [SEARCH])
    messages += [said(called), {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "here"}]
    answer = await parts.ask(session, messages, [SEARCH])
    assert (called.text, called.finish_reason, answer.text) == ("I look.", "tool_calls", "It is there.")
    (row,) = session.trajectory_rows()
    text = chat.decode([id for id in row.token_ids.tolist() if id not in chat.eos_ids])
    assert "<tool_response>\nhere\n</tool_response>" in text
    assert row.num_sampled == len(called.token_ids) + len(answer.token_ids)
