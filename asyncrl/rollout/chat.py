"""Conversations as tokens: the prompt once, then only what each turn adds.

What a model sampled is never decoded and encoded again: its ids need not be the ones that its text encodes to, and the
trainer must see those it drew. So a conversation grows by appending, also where a template would rewrite earlier turns
(drop their reasoning, say): the model is trained on what it saw.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

from asyncrl.data.template import PromptTemplate, TemplateRefused, TokenizerFiles
from asyncrl.data.thoughts import THOUGHT_CLOSE, THOUGHT_OPEN
from asyncrl.data.values import Json

# Stands for an answer that was sampled; letters only, so that no template trims, splits or reads it.
_ANSWER = "zqxANSWERxqz"
_USER: Mapping[str, Json] = {"role": "user", "content": "q"}
_BEFORE: tuple[Mapping[str, Json], ...] = (_USER, {"role": "assistant", "content": _ANSWER})


def _before_calls(messages: Sequence[Mapping[str, Json]]) -> tuple[Mapping[str, Json], ...]:
    """A sampled answer that called the tools which answer in `messages`, for templates that look for the calls."""
    answers = [message for message in messages if message.get("role") == "tool"]
    calls: list[Json] = [
        {
            "id": answer.get("tool_call_id"),
            "type": "function",
            "function": {"name": answer.get("name"), "arguments": {"q": _ANSWER if answer is answers[-1] else ""}},
        }
        for answer in answers
    ]
    return (_USER, {"role": "assistant", "content": "", "tool_calls": calls})


class ChatTemplate(PromptTemplate):
    """The chat template of a model, for episodes: `render` once, `continuation` for every further turn."""

    def __init__(self, files: TokenizerFiles, variables: Mapping[str, Json] | None = None) -> None:
        super().__init__(files, variables)
        self._closes: dict[bool, bool] = {}
        self.eos_ids = self._eos_ids(files)
        """Ids that end an answer: the model's (generation_config.json, config.json) and its tokenizer's."""

    @classmethod
    def from_model_dir(cls, path: Path, variables: Mapping[str, Json] | None = None) -> Self:
        """Load from a model directory; `variables` are further names for the template, such as enable_thinking.

        Raises:
            DataError: no tokenizer.json, no chat template, or a malformed one; the message says what to do.
        """
        return super().from_model_dir(path, variables)

    def continuation(
        self,
        messages: Sequence[Mapping[str, Json]],
        last_id: int | None = None,
        tools: Sequence[Mapping[str, Json]] = (),
    ) -> list[int]:
        """The tokens between a sampled answer and the next one: the turn's separators, `messages`, the next header.

        Args:
            messages: what the environment says, oldest first; at least one.
            last_id: last id that was sampled. If it ends no answer (the answer was cut), the template's end of turn
                comes first. None: the answer has ended.
            tools: that the first prompt has shown: some models have a template of their own for prompts with tools.
        Returns:
            Token ids to append. No token of them was sampled.
        Raises:
            TemplateRefused: the template knows no such turn after an answer.
        """
        if not messages:
            raise TemplateRefused("a continuation needs at least one message")
        shown = tools if self.has_tool_template else ()
        try:
            ids = self._after([*_BEFORE, *messages], shown)
            closes_turns = self._closes_turns(shown)
        except TemplateRefused:
            if not any(message.get("role") == "tool" for message in messages):
                raise
            ids, closes_turns = self._after_calls(messages, shown), True
        if not closes_turns or not ids or ids[0] not in self._special_ids:
            return ids
        cut = last_id is not None and last_id != ids[0] and last_id not in self.eos_ids
        # Generation stops at the end of turn, so an answer that has ended has such a token already.
        return ids if cut else ids[1:]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids up to the first one that ends the answer; bytes that are no character are U+FFFD.

        Control tokens before it are kept as text: an answer with one in the middle is not the answer without it.
        """
        end = next((i for i, token in enumerate(ids) if token in self.eos_ids), len(ids))
        return str(self._tokenizer.decode(list(ids[:end]), skip_special_tokens=False))

    @cached_property
    def opens_thought(self) -> bool:
        """Whether prompts end with the opening of a thought, so that an answer begins inside of it."""
        _, found, after = self.render_text((_USER,)).rpartition(THOUGHT_OPEN)
        return bool(found) and THOUGHT_CLOSE not in after

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(id for id, token in self._tokenizer.get_added_tokens_decoder().items() if token.special)

    def _closes_turns(self, tools: Sequence[Mapping[str, Json]]) -> bool:
        """Whether the template itself writes a control token after an answer, apart from the next turn's header."""
        if bool(tools) not in self._closes:
            closing = self._after(_BEFORE, tools, add_generation_prompt=False)
            self._closes[bool(tools)] = bool(closing) and closing[0] in self._special_ids
        return self._closes[bool(tools)]

    def _after_calls(self, messages: Sequence[Mapping[str, Json]], tools: Sequence[Mapping[str, Json]]) -> list[int]:
        """What follows an answer that called tools, from the control token that ends it."""
        ids = self._after([*_before_calls(messages), *messages], tools)
        end = next((i for i, token in enumerate(ids) if token in self._special_ids), 0)
        return ids[end:]

    def _after(
        self,
        conversation: Sequence[Mapping[str, Json]],
        tools: Sequence[Mapping[str, Json]],
        *,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Token ids of what a conversation has after the answer that was sampled."""
        control = self.control_of(tools)
        marked = control.marked(conversation) if control.found_in(conversation) else list(conversation)
        assert isinstance(marked, list)
        text = self.render_text(marked, tools, add_generation_prompt)
        _, found, after = text.partition(_ANSWER)
        if not found:
            raise TemplateRefused(
                f"the chat template of {self.path} leaves the assistant's content out, so a conversation cannot be "
                "continued after it. Use an environment with one turn, or another template."
            )
        return control.encode(after)

    def _eos_ids(self, files: TokenizerFiles) -> tuple[int, ...]:
        found: list[int] = []
        for config in (files.generation_config, files.model_config):
            value = config.get("eos_token_id")
            found += [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, int)]
        name = files.named_tokens().get("eos_token")
        token = self._tokenizer.token_to_id(name) if name else None
        return tuple(dict.fromkeys(found if token is None else [*found, int(token)]))
