"""The supervised warm start: a few hundred steps after which the model answers in the right form, often wrongly."""

import random
from collections.abc import Callable, Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from asyncrl.config.trainer import StarterSftConfig
from asyncrl.starter.problem import Problem

WARMUP_STEPS = 20
GRAD_CLIP = 1.0
IGNORED = -100  # label of positions that are not learned, as cross_entropy names it


def warm_start(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Iterator[Problem],
    config: StarterSftConfig,
    seed: int,
    progress: Callable[[str, int, int], None],
) -> float:
    """Train `model` in place on demonstrations, of which a share shows a wrong behaviour.

    A model that has seen several behaviours answers in the right form and is right now and then, which is what
    reinforcement learning needs: something to select among.

    Args:
        problems: endless, without held-out prompts.
        seed: of the choice between right answer and decoys.
        progress: called as (text, steps done, steps in all) now and then.
    Returns:
        The last step's loss, nats per answer token.
    """
    rng = random.Random(f"{seed}:demonstrations")
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.0, fused=True)
    prompts = _Prompts(tokenizer)
    model.train()
    loss = torch.zeros(())
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.lr * min(1.0, (step + 1) / WARMUP_STEPS)
        demonstrations = [
            prompts.demonstration(problem, _shown(rng, problem, config.decoy))
            for problem in islice(problems, config.batch_size)
        ]
        loss = _answer_loss(model, demonstrations, tokenizer.pad_token_id)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9 or step + 1 == config.steps:
            progress("warm start", step + 1, config.steps)
    return loss.item()


def _shown(rng: random.Random, problem: Problem, decoy: float) -> str:
    return rng.choice(problem.decoys) if rng.random() < decoy else problem.answer


class _Prompts:
    """Renders demonstrations as token ids; the frame that the chat template puts around a message of a role is rendered
    once."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._frames: dict[str, tuple[list[int], list[int]]] = {}

    def demonstration(self, problem: Problem, answer: str) -> tuple[list[int], list[int]]:
        """Token ids of prompt and answer with the end token, and their labels: the answer's only."""
        prompt_ids, answer_ids = self._turns(problem), self._ended(answer)
        return prompt_ids + answer_ids, [IGNORED] * len(prompt_ids) + answer_ids

    def _turns(self, problem: Problem) -> list[int]:
        ids = self._framed("user", problem.prompt)
        for said, told in problem.history:
            ids += [*self._ended(said), *self._framed(problem.told_by, told)]
        return ids

    def _ended(self, answer: str) -> list[int]:
        return [*self._encode(answer), self._tokenizer.eos_token_id]

    def _framed(self, role: str, text: str) -> list[int]:
        if role not in self._frames:
            self._frames[role] = self._frame_of(role)
        before, after = self._frames[role]
        return [*before, *self._encode(text), *after]

    def _frame_of(self, role: str) -> tuple[list[int], list[int]]:
        """What the chat template writes before and after a message of a role."""
        ids = self._render((role, "0"))
        start = ids.index(self._encode("0")[0])
        before, after = ids[:start], ids[start + 1 :]
        # A template that rewrites its content would be learned in another form than servers render.
        later = [*before, *self._encode("sort 12"), *after]
        assert self._render((role, "sort 12")) == later
        first = [*ids, *self._ended("5")]
        assert self._render((role, "0"), ("assistant", "5"), (role, "sort 12")) == [*first, *later]
        return before, after

    def _render(self, *messages: tuple[str, str]) -> list[int]:
        """Messages of (role, text), the assistant to be next, as the chat template has them."""
        conversation = [{"role": role, "content": text} for role, text in messages]
        ids: list[int] = self._tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, return_dict=False
        )
        return ids

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


def _answer_loss(
    model: LlamaForCausalLM, demonstrations: list[tuple[list[int], list[int]]], pad_token_id: int
) -> torch.Tensor:
    length = max(len(ids) for ids, _ in demonstrations)
    ids_BT = torch.tensor([ids + [pad_token_id] * (length - len(ids)) for ids, _ in demonstrations])
    labels_BT = torch.tensor([labels + [IGNORED] * (length - len(labels)) for _, labels in demonstrations])
    # Padding is on the right, so that no real token attends to it under the causal mask.
    logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=IGNORED)
