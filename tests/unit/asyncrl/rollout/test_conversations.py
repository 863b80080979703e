"""Random conversations with tools, turn by turn: tokens are only appended, and read as the template writes them."""

import random

import numpy as np
import pytest

from asyncrl.rollout.builder import TrajectoryBuilder
from asyncrl.rollout.chat import ChatTemplate
from buffer import Span
from tests.support.chat_models import make_model_dir
from tests.support.conversations import WRITES, Conversation, Message, random_conversation

NUM_CONVERSATIONS = 200


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChatTemplate]:
    root = tmp_path_factory.mktemp("models")
    return {family: ChatTemplate.from_model_dir(make_model_dir(root / family, family)) for family in WRITES}


def sampled_ids(chat: ChatTemplate, family: str, message: Message, *, odd: bool) -> list[int]:
    """What a model samples for a turn, its end token included.

    Args:
        odd: an answer in words comes in other tokens than its text encodes to.
    """
    writes, control = WRITES[family], chat.control_of(())
    if "tool_calls" in message:
        marked = control.marked(message)
        assert isinstance(marked, dict)
        return [*control.encode(writes.call(marked)), *chat.encode(writes.ends[1])]
    ids = control.encode(writes.header + str(control.marked(message["content"])))
    if odd:
        ids = [piece for token in ids for piece in _pieces(chat, token)]
    return [*ids, *chat.encode(writes.ends[0])]


def _pieces(chat: ChatTemplate, token: int) -> list[int]:
    """Other ids with the text of one, if there are any."""
    text = chat.decode([token])
    ids = [piece for char in text for piece in chat.encode(char)]
    is_whole = "\ufffd" not in text  # not a part of a character
    return ids if is_whole and len(text) > 1 and chat.decode(ids) == text else [token]


def play(chat: ChatTemplate, family: str, talk: Conversation, rng: random.Random) -> tuple[TrajectoryBuilder, bool]:
    """Append the conversation turn by turn, checking that nothing before it changes. Whether some ids were odd."""
    builder, sampled = TrajectoryBuilder(), []
    builder.begin_row(chat.render(talk.messages[: talk.first], talk.tools))
    rest, any_odd = talk.messages[talk.first :], False
    while rest:
        odd = rng.random() < 0.2 and "tool_calls" not in rest[0]
        any_odd |= odd
        before = list(builder.token_ids)
        ids = sampled_ids(chat, family, rest[0], odd=odd)
        sampled.append((len(before), ids))
        builder.append_sampled(ids, [-0.5] * len(ids), [Span(0, 0, len(ids))])
        replies = next((i for i, m in enumerate(rest[1:], start=1) if m["role"] == "assistant"), len(rest))
        builder.append_context(chat.continuation(rest[1:replies], tools=talk.tools))
        assert builder.token_ids[: len(before) + len(ids)] == before + ids, "a turn extends what was there"
        rest = rest[replies:]
    (row,) = builder.rows()
    mask = np.zeros(len(row.token_ids), dtype=bool)
    for start, ids in sampled:
        assert row.token_ids[start : start + len(ids)].tolist() == ids, "what was sampled is never touched"
        mask[start : start + len(ids)] = True
    assert row.mask.tolist() == mask.tolist(), "what tools and users say is never trained on (B132)"
    return builder, any_odd


@pytest.mark.parametrize("family", WRITES)
def test_turns_are_appended_as_a_rendering_of_the_whole_conversation_has_them(
    chats: dict[str, ChatTemplate], family: str
) -> None:
    """B133: also of turns that are only calls. Control tokens in what anybody says open no turn (B111)."""
    chat, num_equal = chats[family], 0
    for seed in range(NUM_CONVERSATIONS):
        rng = random.Random(f"{family} {seed}")
        talk = random_conversation(rng, WRITES[family])
        builder, any_odd = play(chat, family, talk, rng)
        is_moved = WRITES[family].moves_prompt and (talk.tools or talk.first == 2)
        if is_moved:
            continue  # the prefix was checked; a later rendering has the prompt elsewhere
        whole = chat.render(talk.messages, talk.tools)
        if any_odd:
            assert decoded(chat, builder.token_ids) == decoded(chat, whole), f"seed {seed}"
        else:
            assert builder.token_ids == whole, f"seed {seed}"
        num_equal += not any_odd
    assert num_equal >= NUM_CONVERSATIONS // 20


def decoded(chat: ChatTemplate, ids: list[int]) -> str:
    """All ids as text, ends of turns included."""
    eos, chat.eos_ids = chat.eos_ids, ()
    try:
        return chat.decode(ids)
    finally:
        chat.eos_ids = eos


def test_a_moved_prompt_stays_where_the_model_saw_it(chats: dict[str, ChatTemplate]) -> None:
    """Mistral's template writes tools before the last user message only; they are shown once, and not again."""
    chat = chats["mistral_v3"]
    talk = random_conversation(random.Random(1), WRITES["mistral_v3"])
    again = chat.continuation([{"role": "user", "content": "and 2+2?"}], tools=talk.tools)
    assert decoded(chat, again) == "[INST]  and 2+2?[/INST]"
