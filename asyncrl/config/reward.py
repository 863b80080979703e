"""Section of the rewards: what scores answers, how scores are combined, and how long one may take."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from asyncrl.config.section import Section

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Url = Annotated[str, Field(pattern=r"^https?://[^\s/]+")]

TABLE, FILE = "table", "file"
"""Names of the scorers that need no entry: the rules by data_source, and reward.file."""


class _EndpointConfig(Section):
    """What is common to all that scores behind a URL."""

    data_sources: tuple[str, ...] = ()
    """Data sources whose answers it scores. Empty: all, unless an entry of reward.combine names it."""

    max_attempts: int = Field(4, ge=1)
    """Times an answer is sent, when the server is busy, fails or takes longer than its timeout."""

    in_flight: int = Field(32, ge=1)
    """Requests that one worker has with it at once; further answers wait."""

    timeout_s: float | None = Field(None, gt=0)
    """Seconds one request may take. null: rollout.reward.timeout_s."""

    requests_per_minute: int | None = Field(None, ge=1)
    """Most requests in any minute, retries included, of all workers of the run: each has an equal part. null: no
    limit."""

    cache: bool = True
    """Whether an answer that was scored before, with the same row, gets the same score without asking."""


class RewardServerConfig(_EndpointConfig):
    """A reward model that somebody else runs behind a URL."""

    url: Url
    """Where answers are posted to, one at a time, as JSON; it replies {"score": number, ...}."""

    name: Name | None = None
    """Name in reward.combine, parts, tables and messages. null: server-1, server-2, ... by its place in the list."""


class JudgeConfig(_EndpointConfig):
    """A language model that is asked for a score, behind OpenAI's /chat/completions."""

    name: Name
    """Name in reward.combine, parts, tables and messages."""

    url: Url
    """The address before /chat/completions, for example http://judge:8000/v1."""

    model: str = Field(min_length=1)
    """The model to ask for."""

    prompt: str = (
        "Grade the answer to a question.\n\nQuestion:\n{question}\n\nReference answer:\n{ground_truth}\n\n"
        "Answer to grade:\n{answer}\n\nThink briefly, then end with a line `Score: N`, N from 0 (wrong) to 1 (right)."
    )
    """What it is asked. {question}, {answer}, {ground_truth} and {data_source} are filled in; other braces stay. What
    is filled in is not looked at again, so an answer cannot fill in anything."""

    score_pattern: str | None = r"(?i)\b(?:score|reward|rating|grade)\b[\s*\"'`]*[:=][\s*\"'`]*([^\s*\"'`,;]+)"
    """Regular expression whose one group is the score; the last match counts. The group must be a number as a whole, or
    a fraction of `highest`. null: see score_key."""

    score_key: str | None = None
    """Key of a JSON object in the reply that holds the score, in place of score_pattern; its other numbers become parts
    of the reward."""

    lowest: float = 0.0
    """Score that is a reward of 0."""

    highest: float = 1.0
    """Score that is a reward of 1. A score outside the two is a failed reward."""

    max_tokens: int = Field(512, ge=1)
    """Longest reply, in tokens. Replies are sampled at temperature 0."""

    tokens_per_minute: int | None = Field(None, ge=1)
    """Most tokens in any minute, of prompts and replies, as requests_per_minute. null: no limit."""

    api_key_env: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable of the workers that holds the key. null: none is sent."""

    @field_validator("score_pattern")
    @classmethod
    def pattern_has_one_group(cls, pattern: str | None) -> str | None:
        """Refuse what is no expression, or does not say which part is the score."""
        try:
            groups = 1 if pattern is None else re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"score_pattern = {pattern!r} is no regular expression: {error}.") from None
        if groups != 1:
            raise ValueError(
                f"score_pattern = {pattern!r} has {groups} groups, wanted one: the score. Write others as (?:...)."
            )
        return pattern

    @model_validator(mode="after")
    def score_can_be_found(self) -> Self:
        """Refuse a judge that does not see the answer, or whose score is nowhere or in an empty range."""
        if "{answer}" not in self.prompt:
            raise ValueError(f"judge {self.name!r}: its prompt has no {{answer}}, so it would grade nothing.")
        if self.score_key is None and self.score_pattern is None:
            raise ValueError(f"judge {self.name!r} needs score_pattern or score_key, to find the score in its reply.")
        if self.highest <= self.lowest:
            raise ValueError(f"judge {self.name!r}: highest = {self.highest} must be above lowest = {self.lowest}.")
        return self


class RewardFunctionConfig(Section):
    """A reward function of your own, in processes of its own."""

    name: Name
    """Name in reward.combine, parts, tables and messages."""

    file: Path
    """Python file."""

    function: str = "compute_score"
    """The function in it, with verl's arguments: for one answer, or (data_sources, solution_strs, ...) for many."""

    data_sources: tuple[str, ...] = ()
    """Data sources whose answers it scores. Empty: all, unless an entry of reward.combine names it."""

    workers: int = Field(1, ge=1)
    """Processes at most."""

    timeout_s: float | None = Field(None, gt=0)
    """Seconds one call may take. null: rollout.reward.timeout_s."""

    cache: bool = False
    """Whether an answer that was scored before, with the same row, gets the same score without a call."""


class WeightedScorerConfig(Section):
    """One scorer of a combination."""

    scorer: Name
    """Name of a server, judge or function; `table`: the rules by data_source; `file`: reward.file."""

    weight: float = Field(1.0, allow_inf_nan=False)
    """What its score is multiplied by before it is added."""


class CombinedRewardConfig(Section):
    """The reward of some data sources as a weighted sum of scores."""

    scorers: tuple[WeightedScorerConfig, ...] = Field(min_length=1)
    """They are asked at the same time. If one of them fails, the reward failed: the rest would be on another scale."""

    data_sources: tuple[str, ...] = ()
    """Data sources whose answers are scored so. Empty: all."""

    @model_validator(mode="after")
    def scorers_differ(self) -> Self:
        """Refuse a scorer that is named twice."""
        names = [one.scorer for one in self.scorers]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"rollout.reward.combine names {twice!r} twice in one entry. Add the weights up.")
        return self


class RewardConfig(Section):
    """Where rewards come from, and how long one may take."""

    servers: tuple[RewardServerConfig, ...] = ()
    """Reward models over HTTP; the first that takes a data source scores it, before reward.file and the table."""

    judges: tuple[JudgeConfig, ...] = ()
    """Language models that are asked for a score; looked at after the servers."""

    functions: tuple[RewardFunctionConfig, ...] = ()
    """Further reward functions of your own, each in its own processes; looked at after the judges."""

    combine: tuple[CombinedRewardConfig, ...] = ()
    """Weighted sums of scorers, by data source; the first entry that takes a data source scores it, before all else.
    Each score is kept as a part of the reward, under its scorer's name."""

    file: Path | None = None
    """Python file with your own reward function, called with verl's arguments. None: the table by data_source."""

    function: str = "compute_score"
    """Name of the function in reward.file; it may be async, and score one answer or a batch."""

    workers: int = Field(2, ge=1)
    """Processes that score answers; a function that hangs or crashes costs one of them, never the run."""

    batch_size: int = Field(64, ge=1)
    """Most answers that a function for many gets at once: those that came in while all its processes were busy."""

    timeout_s: float = Field(30.0, gt=0)
    """Seconds one call may take. Later it is killed and the trajectory is masked and counted, not scored 0."""

    cache_bytes: int = Field(16 << 20, ge=0)
    """Memory of one worker for scores of answers that it may meet again; the ones used longest ago go. 0: none."""

    max_failure_share: float = Field(0.5, ge=0, lt=1)
    """Share of failures among the last reward.failure_window calls that one worker made to a scorer above which the run
    stops: it would learn from what is left of its prompts."""

    failure_window: int = Field(64, ge=1)
    """Calls that the share is taken of; nothing is judged before so many."""

    @property
    def has_minute_limits(self) -> bool:
        """Whether workers have anything per minute to share."""
        return any(one.requests_per_minute is not None for one in (*self.servers, *self.judges)) or any(
            judge.tokens_per_minute is not None for judge in self.judges
        )

    def named(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Key, name and data sources of every server, judge and function, in the order in which they are looked at."""
        for i, server in enumerate(self.servers):
            yield f"rollout.reward.servers[{i}]", server.name or f"server-{i + 1}", server.data_sources
        for i, judge in enumerate(self.judges):
            yield f"rollout.reward.judges[{i}]", judge.name, judge.data_sources
        for i, function in enumerate(self.functions):
            yield f"rollout.reward.functions[{i}]", function.name, function.data_sources

    @property
    def combined(self) -> frozenset[str]:
        """Names of the scorers of combinations; without data sources these score nothing on their own."""
        return frozenset(one.scorer for entry in self.combine for one in entry.scorers)

    @model_validator(mode="after")
    def scorers_have_names_of_their_own(self) -> Self:
        """Refuse two scorers of one name, and a combination of scorers that are not there."""
        names = [TABLE, FILE, *(name for _, name, _ in self.named())]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"rollout.reward has two scorers named {twice!r}. Rename one.")
        known = [name for name in names if name != FILE or self.file is not None]
        for name in sorted(self.combined):
            if name not in known:
                raise ValueError(
                    f"rollout.reward.combine names the scorer {name!r}, which is not there. There are: "
                    f"{', '.join(known)}."
                )
        return self

    @model_validator(mode="after")
    def every_reward_can_be_called(self) -> Self:
        """Refuse a reward behind one that takes every answer: it would silently never be called."""
        alone = [(key, sources) for key, name, sources in self.named() if sources or name not in self.combined]
        if self.file is not None and FILE not in self.combined:
            alone.append(("rollout.reward.file", ()))
        greedy = [place for place, (_, sources) in enumerate(alone) if not sources]
        if greedy and greedy[0] + 1 < len(alone):
            raise ValueError(
                f"{alone[greedy[0]][0]} takes the answers of every data source, so {alone[greedy[0] + 1][0]} would "
                "never be called. List the data_sources of the first, or remove the other."
            )
        return self
