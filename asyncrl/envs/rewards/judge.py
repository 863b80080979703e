"""A language model as a scorer, behind OpenAI's /chat/completions: a prompt goes out, a score is read in the reply.

A reply is asked for at temperature 0. One in which no score can be read is asked for again, as often as the endpoint
allows, and is a failed reward after that: what is almost a number is no number, and what was cut has no end to read.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping

from asyncrl.config.reward import JudgeConfig
from asyncrl.data.rows import PromptRow
from asyncrl.data.values import Json, excerpt
from asyncrl.envs.rewards.endpoint import Endpoint, EndpointSettings, Scored
from asyncrl.envs.rewards.limits import MinuteLimits, Share
from asyncrl.envs.rewards.result import Reward
from asyncrl.envs.rewards.scorer import Outcome
from asyncrl.errors import RewardError

CHARS_PER_TOKEN = 3
"""Of a prompt whose tokenizer nobody here has; on the safe side for English. The reply's usage corrects it."""

MOST_OBJECTS = 1000
"""Places at which an object is looked for: a reply of braces alone must not cost minutes."""

_FIELD = re.compile(r"\{(question|answer|ground_truth|data_source)\}")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_THOUGHTS_END = "</think>"


class Judge:
    """One judge. Bound to the event loop that it is used in.

    Args:
        config: where it is, what it is asked, how its score is read.
        timeout_s: seconds one request may take, if the config does not say.
        share: the part of its limits per minute that this worker has. None: all.
        environment: where its key is looked up.
    Raises:
        RewardError: the variable that should hold its key is not set.
    """

    def __init__(
        self,
        config: JudgeConfig,
        timeout_s: float,
        share: Share | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.name, self._config = config.name, config
        self._pattern = None if config.score_pattern is None else re.compile(config.score_pattern)
        self._endpoint = Endpoint(
            EndpointSettings(
                url=f"{config.url.rstrip('/')}/chat/completions",
                timeout_s=config.timeout_s or timeout_s,
                max_attempts=config.max_attempts,
                in_flight=config.in_flight,
                limits=MinuteLimits(config.name, config.requests_per_minute, config.tokens_per_minute, share=share),
                headers=_key_header(config, environment),
                asks_again=True,
            )
        )

    async def start(self) -> None:
        """Nothing to prepare: a server may come up later than its run."""

    async def score(self, row: PromptRow, text: str) -> Outcome:
        """Its score, or how it failed."""
        prompt = filled(self._config.prompt, row, text)
        body = {
            "model": self._config.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": self._config.max_tokens,
        }
        tokens = len(prompt) // CHARS_PER_TOKEN + self._config.max_tokens
        return await self._endpoint.ask(body, self._read, tokens=tokens)

    def kill(self) -> None:
        """Nothing was started."""

    async def close(self) -> None:
        """Close connections; requests in flight fail."""
        await self._endpoint.close()

    def _read(self, reply: object) -> Scored:
        text, usage = _text_of(reply)
        if self._config.score_key is not None:
            return Scored(self._from_object(text, self._config.score_key), usage)
        assert self._pattern is not None
        found = list(self._pattern.finditer(text))
        if not found:
            raise RewardError(f"judge {self.name} gave no score: ...{excerpt(text[-60:])!r}")
        return Scored(Reward(self._scaled(_number(found[-1].group(1), self._config.highest))), usage)

    def _from_object(self, text: str, key: str) -> Reward:
        holding = [one for one in _objects(text) if key in one]
        if not holding:
            raise RewardError(f"judge {self.name} gave no JSON object with {key!r}: ...{excerpt(text[-60:])!r}")
        last = holding[-1]
        value = last[key]
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        if number is None:
            number = _number(str(value) if isinstance(value, str) else "", self._config.highest)
        others = {name: x for name, x in last.items() if name != key and isinstance(x, int | float)}
        return Reward(self._scaled(number), None, {name: float(x) for name, x in others.items() if math.isfinite(x)})

    def _scaled(self, score: float | None) -> float:
        low, high = self._config.lowest, self._config.highest
        if score is None or not math.isfinite(score):
            raise RewardError(f"judge {self.name} gave a score that is no number")
        if not low <= score <= high:
            raise RewardError(f"judge {self.name} gave {score:g}, which is not between {low:g} and {high:g}")
        return (score - low) / (high - low)


def filled(prompt: str, row: PromptRow, answer: str) -> str:
    """The judge's prompt for an answer. One pass: what is filled in is not looked at again."""
    values = {
        "question": "\n\n".join(_content(message) for message in row.messages),
        "answer": answer,
        "ground_truth": row.ground_truth if isinstance(row.ground_truth, str) else json.dumps(row.ground_truth),
        "data_source": row.data_source,
    }
    return _FIELD.sub(lambda match: values[match.group(1)], prompt)


def _content(message: Mapping[str, Json]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _key_header(config: JudgeConfig, environment: Mapping[str, str]) -> dict[str, str]:
    if config.api_key_env is None:
        return {}
    key = environment.get(config.api_key_env, "")
    if not key:
        raise RewardError(
            f"judge {config.name!r}: the environment variable {config.api_key_env} that should hold its key is not "
            "set. Set it where serve-rollout is started, or remove rollout.reward.judges api_key_env."
        )
    return {"Authorization": f"Bearer {key}"}


def _text_of(reply: object) -> tuple[str, int | None]:
    """The text of the first choice, without a reasoning model's thoughts, and the tokens that it took."""
    choices = reply.get("choices") if isinstance(reply, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, str):
        raise RewardError(f"the reply has no choices[0].message.content: {excerpt(str(reply))}")
    if isinstance(first, dict) and first.get("finish_reason") == "length":
        raise RewardError(f"the reply was cut at max_tokens, before its end: ...{excerpt(content[-60:])!r}")
    usage = reply.get("usage") if isinstance(reply, dict) else None
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    spent = total if isinstance(total, int) and not isinstance(total, bool) and total >= 0 else None
    return content.rpartition(_THOUGHTS_END)[2], spent


def _number(text: str, highest: float) -> float | None:
    """The number that a text is as a whole, or a fraction of the highest score (8/10); None: it is none."""
    text = text.strip().removesuffix(".")
    over, slash, under = text.partition("/")
    if slash and _NUMBER.fullmatch(under.strip()) and float(under) == highest:
        text = over.strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def _objects(text: str) -> Iterator[dict[str, Json]]:
    """The outermost JSON objects in a text, in order; the next is looked for where the last one ended."""
    decoder, start = json.JSONDecoder(), text.find("{")
    attempts = 0
    while start >= 0 and attempts < MOST_OBJECTS:
        attempts += 1
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            if isinstance(found, dict):
                yield found
        start = text.find("{", end)
