"""The record of one episode as tokens, appended to while it is played, and what the trainer gets of it.

Three kinds of tokens: the prompt, what the policy sampled (with logprob and version), and what the environment said.
Only the second kind is ever trained on. Nothing is decoded and encoded again: the ids are those that were drawn.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from asyncrl.data.policies import SAMPLED
from asyncrl.data.routed_experts import COLUMN
from asyncrl.envs.base import Reward
from asyncrl.inference.experts import Experts
from buffer import Row, Span, Trajectory


class TrajectoryBuilder:
    """One row after another; `begin_row` starts the first, and a further one where the context is rewritten."""

    def __init__(self, on_older: Callable[[], None] = lambda: None, *, first_row: int = 0) -> None:
        """
        Args:
            on_older: called when the oldest version becomes known or older: the group's age hangs on it.
            first_row: number of the first row, where others of the trajectory are elsewhere.
        """
        self._on_older, self._first_row = on_older, first_row
        self.clear()

    def clear(self) -> None:
        """Drop everything: the episode starts over."""
        self.oldest_version: int | None = None
        """Smallest packed version that a token was sampled under, None before the first token."""
        self.num_sampled = 0
        self.token_ids: list[int] = []
        """Ids of the current row: what the next request continues."""
        self._rows: list[Row] = []
        self._begun: Row | None = None
        self._num_prompt_tokens = 0
        self._sampled: list[tuple[int, Sequence[float]]] = []
        self._spans: list[Span] = []
        self._experts: Experts | None = None

    @property
    def row_index(self) -> int:
        """Number of the current row, from 0."""
        return self._first_row + len(self._rows)

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt of the episode, that of its first row."""
        if self._rows:
            first = self._rows[0]
            return [int(token) for token in first.token_ids[: first.num_prompt_tokens]]
        return self.token_ids[: self._num_prompt_tokens]

    def begin_row(self, prompt_ids: Sequence[int]) -> None:
        """Start a row with its prompt; the row before it is complete."""
        if self.token_ids:
            self._rows.append(self._row())
        self.token_ids, self._begun = list(prompt_ids), None
        self._num_prompt_tokens = len(prompt_ids)
        self._sampled, self._spans, self._experts = [], [], None

    def restore(self, rows: Sequence[Row]) -> None:
        """Take over the rows of a parked trajectory as they are. The last one stays open.

        Args:
            rows: at least one. Of the last one's columns only the recorded experts are taken over: no row that is
                built here has others.
        """
        self.clear()
        *self._rows, last = rows
        self.token_ids, self._begun = last.token_ids.tolist(), last
        self._num_prompt_tokens = last.num_prompt_tokens
        self._spans = list(last.spans)
        if COLUMN in last.columns:
            experts = last.columns[COLUMN].astype(np.int16)
            # What a server has not read yet has none: the last sampled token, and context after it.
            num_read = int(np.flatnonzero((experts >= 0).any(axis=(1, 2))).max(initial=-1)) + 1
            self._experts = experts[:num_read]
        self._note(rows)

    def take_rows(self, rows: Sequence[Row]) -> None:
        """Have these rows, complete as they are, in place of all before."""
        self.clear()
        self._rows = list(rows)
        self._note(rows)

    def _note(self, rows: Sequence[Row]) -> None:
        self.num_sampled = sum(row.num_sampled for row in rows)
        self.oldest_version = min((span.version for row in rows for span in row.spans), default=None)
        if self.oldest_version is not None:
            self._on_older()

    def append_sampled(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        spans: Sequence[Span],
        experts: Experts | None = None,
    ) -> None:
        """Append sampled tokens, one logprob each, with the spans that cover them.

        Args:
            experts: of the row's tokens but for the last, if the server said. What was known of earlier ones stays:
                their successors were sampled with these.
        """
        if not token_ids:
            return
        if experts is not None:
            known = self._experts
            self._experts = experts if known is None else np.concatenate([known, experts[len(known) :]])
        self._sampled.append((len(self.token_ids), logprobs))
        self.token_ids.extend(token_ids)
        self.num_sampled += len(token_ids)
        for span in spans:
            if self.oldest_version is None or span.version < self.oldest_version:
                self.oldest_version = span.version
                self._on_older()
            last = self._spans[-1] if self._spans else None
            if last is not None and (last.version, last.digest) == (span.version, span.digest):
                self._spans[-1] = Span(span.version, span.digest, last.num_tokens + span.num_tokens)
            else:
                self._spans.append(span)

    def append_context(self, token_ids: Sequence[int]) -> None:
        """Append tokens that nobody sampled: the environment's messages and the template around them."""
        self.token_ids.extend(token_ids)

    def rows(self) -> tuple[Row, ...]:
        """The rows so far, which check themselves.

        Raises:
            TrajectoryError: ids, logprobs or spans contradict each other.
        """
        return (*self._rows, self._row()) if self.token_ids or not self._rows else tuple(self._rows)

    def finish(
        self,
        reward: Reward,
        *,
        finish_reason: str,
        num_turns: int,
        extra_info: Mapping[str, object],
        policy: str = SAMPLED,
    ) -> Trajectory:
        """The trajectory, which checks itself.

        Raises:
            TrajectoryError: ids, logprobs or spans contradict each other, or the reward is not a number.
        """
        return Trajectory(
            rows=self.rows(),
            reward=reward.value,
            reward_error=reward.error,
            reward_parts=reward.parts,
            finish_reason=finish_reason,
            num_turns=num_turns,
            policy=policy,
            extra_info=extra_info,
        )

    def _row(self) -> Row:
        begun = self._begun
        first = 0 if begun is None else len(begun.token_ids)
        num_added = len(self.token_ids) - first
        token_ids = np.array(self.token_ids[first:], dtype=np.uint32)
        mask = np.zeros(num_added, dtype=np.bool_)
        logprobs = np.zeros(num_added, dtype=np.float32)
        for start, values in self._sampled:
            mask[start - first : start - first + len(values)] = True
            logprobs[start - first : start - first + len(values)] = values
        if begun is not None:  # as arrays: a conversation of many turns is not made into one anew after each of them
            token_ids = np.concatenate([begun.token_ids, token_ids])
            mask, logprobs = np.concatenate([begun.mask, mask]), np.concatenate([begun.logprobs, logprobs])
        columns = {}
        if self._experts is not None:
            columns[COLUMN] = np.full((len(mask), *self._experts.shape[1:]), -1, dtype=self._experts.dtype)
            columns[COLUMN][: len(self._experts)] = self._experts
        return Row(token_ids, mask, logprobs, tuple(self._spans), self._num_prompt_tokens, columns)
