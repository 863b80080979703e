"""What a simulated run comes to, counted after the steps that fill the pipeline."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from asyncrl.tuning.ledger import SimGroup
from asyncrl.tuning.profile import Setting
from buffer import staleness

FEW_STEPS = 3


def warm_up_steps(setting: Setting) -> int:
    """Steps until the window is full and a version has gone all the way round: those of limit + 1 versions, and a few
    more."""
    return (setting.limit + 1) * setting.steps_per_version + FEW_STEPS


@dataclass(frozen=True)
class Prediction:
    """Numbers of a run, under the names that measured ones have.

    Attributes:
        tokens_per_s: trained tokens, prompts included, over the seconds of the steps (perf/tokens_per_s).
        step_s: seconds of a step (timing_s/step).
        stall_share: share of them in which the trainer waits for groups (timing_s/wait, fresh and stale ones).
        lag_mean: of the groups trained on, in versions (buffer/lag_mean).
        lag_max: of them.
        stale_share: groups that left for being stale, of all that left or were trained on.
        length_bias: tokens per trained answer over tokens per started one, less 1 (see docs/staleness.md).
        refused_share: share of the time in which workers may start nothing.
        busy_share: share of the time in which a server has a request and does not stand still.
        server_wait_s: median seconds of requests that waited for a server at their version; 0: none had to.
    """

    tokens_per_s: float
    step_s: float
    stall_share: float
    lag_mean: float
    lag_max: int
    stale_share: float
    length_bias: float
    refused_share: float
    busy_share: float
    server_wait_s: float


@dataclass
class Recorder:
    """Takes notes while a simulation runs. `num_steps` are over."""

    setting: Setting
    steps: int
    num_steps: int = 0
    _from_s: float = 0.0
    _until_s: float = 0.0
    _tokens: float = 0.0
    _waits_since_s: float | None = None
    _waited_s: float = 0.0
    _closed_since_s: float | None = None
    _closed_s: float = 0.0
    _lags: list[int] = field(default_factory=list)
    _trained: list[float] = field(default_factory=list)
    _left: list[float] = field(default_factory=list)
    _num_left: int = 0
    _server_waits_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raises ValueError: all steps would be warm-up."""
        if self.steps <= warm_up_steps(self.setting):
            raise ValueError(
                f"{self.steps} steps are all warm-up: with limit {self.setting.limit} and "
                f"{self.setting.steps_per_version} steps a version the first {warm_up_steps(self.setting)} fill the "
                "pipeline. Simulate more steps."
            )

    @property
    def _counts(self) -> bool:
        return self.num_steps >= warm_up_steps(self.setting)

    def waits(self, now_s: float) -> None:
        """The trainer asked for a batch in vain."""
        if self._waits_since_s is None:
            self._waits_since_s = now_s

    def admission(self, now_s: float, *, is_closed: bool) -> None:
        """Whether a worker with room may start a group."""
        if self._closed_since_s is not None:
            self._closed_s += self._counts * (now_s - self._closed_since_s)
        self._closed_since_s = now_s if is_closed else None

    def waited_for_server(self, seconds: float) -> None:
        """A request had no server to go to for so long."""
        if self._counts:
            self._server_waits_s.append(seconds)

    def leased(self, now_s: float, trained: int, groups: Sequence[SimGroup], left: Sequence[SimGroup]) -> None:
        """The trainer has a batch; `left` are groups that left since the last one."""
        if self._counts:
            self._waited_s += now_s - self._waits_since_s if self._waits_since_s is not None else 0.0
            self._lags += [staleness.lag(trained, group.oldest) for group in groups]
            self._trained += [length for group in groups for length in group.lengths]
            self._left += [length for group in left for length in group.lengths]
            self._num_left += len(left)
        self._waits_since_s = None

    def stepped(self, now_s: float, tokens: float) -> None:
        """A step is over."""
        self._tokens += tokens if self._counts else 0.0
        self.num_steps += 1
        if self.num_steps == warm_up_steps(self.setting):
            self._from_s = now_s
            if self._closed_since_s is not None:
                self._closed_since_s = now_s
        self._until_s = now_s

    def prediction(self, busy_s: float) -> Prediction:
        """The numbers. `busy_s`: seconds that a server was busy, from the beginning."""
        self.admission(self._until_s, is_closed=False)
        seconds, num_trained = self._until_s - self._from_s, len(self._lags)
        started = [*self._trained, *self._left]
        return Prediction(
            tokens_per_s=self._tokens / seconds,
            step_s=seconds / (self.steps - warm_up_steps(self.setting)),
            stall_share=self._waited_s / seconds,
            lag_mean=sum(self._lags) / num_trained,
            lag_max=max(self._lags),
            stale_share=self._num_left / (self._num_left + num_trained),
            length_bias=(sum(self._trained) / len(self._trained)) / (sum(started) / len(started)) - 1,
            refused_share=self._closed_s / seconds,
            busy_share=busy_s / self._until_s,
            server_wait_s=median(self._server_waits_s) if self._server_waits_s else 0.0,
        )
