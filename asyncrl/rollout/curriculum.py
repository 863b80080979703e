"""Prompts by result: which are worth playing now, and the draws that a worker offers the ledger for its next ordinal.

A policy is asked about the prompts of the run's order, one position after the other, with the newest result of each;
those that it passes over wait for the next epoch. The ledger takes the first offered position that no other worker has
passed, and keeps it with its reason (`buffer.draws`), so that a retry, a resume and a replay play the same prompt.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from asyncrl.config.data import CurriculumConfig
from asyncrl.rollout.prompts import Order, mix
from buffer import Draw, PassRate

OFFERED = 16
"""Draws that are offered at once: as many reserves of other workers may come between."""
LOOKED_AT = 64
"""Prompts whose results are asked for in one call."""
FRESH_S = 2.0
"""Seconds for which offers stand while nobody is admitted: waiting workers would else ask for results all the time."""
MOST_LOOKED_AT = 1024
"""Positions after which one is offered that the policy would pass over: a run must go on when no prompt fits."""

Policy = Callable[[CurriculumConfig, PassRate | None], str | None]
"""Why a prompt with this newest result (None: it has none) is to be played; None: pass it over."""
PassRates = Callable[[Sequence[int]], Sequence[PassRate | None]]
"""The newest result of each of some prompts. Blocks."""


def in_band(config: CurriculumConfig, rate: PassRate | None) -> str | None:
    """Prompts that are neither too easy nor too hard, and new ones."""
    if rate is None:
        return "no result yet"
    return _shown(rate) if config.low <= rate.share <= config.high else None


POLICIES: Mapping[str, Policy] = MappingProxyType({"pass_rate": in_band})
"""Values of data.curriculum.policy; `none` is the plain order."""


class Curriculum:
    """Offers draws for one worker.

    Args:
        config: the policy and its band.
        order: position to prompt.
        pass_rates: asks the ledger.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        config: CurriculumConfig,
        order: Order,
        pass_rates: PassRates,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._order, self._pass_rates, self._clock = config, order, pass_rates, clock
        self._policy = POLICIES[config.policy]
        self._next, self._offers, self._looked_s = 0, tuple[Draw, ...](), 0.0

    def offers(self) -> tuple[Draw, ...]:
        """Draws by position, at least one: those of a moment ago, if none of them was taken, or new ones. Blocks."""
        if not self._offers or self._clock() - self._looked_s >= FRESH_S:
            self._offers, self._looked_s = tuple(self._found()), self._clock()
        return self._offers

    def passed(self, next_position: int) -> None:
        """The ledger is so far: the next offers begin there, by the results of then."""
        self._next = max(self._next, next_position)
        self._offers = ()

    def _found(self) -> list[Draw]:
        found: list[Draw] = []
        for start in range(self._next, self._next + MOST_LOOKED_AT, LOOKED_AT):
            prompts = [self._order.index(position) for position in range(start, start + LOOKED_AT)]
            for i, (prompt, rate) in enumerate(zip(prompts, self._pass_rates(prompts), strict=True)):
                reason = self._policy(self._config, rate) or self._retried(start + i, rate)
                if reason is not None:
                    found.append(Draw(start + i, prompt, reason))
            if len(found) >= OFFERED:
                return found[:OFFERED]
        none_fits = f"none of the next {MOST_LOOKED_AT} prompts is in the band"
        return found or [Draw(self._next, self._order.index(self._next), none_fits)]

    def _retried(self, position: int, rate: PassRate | None) -> str | None:
        """By chance, but the same for every worker that looks."""
        chance = mix(mix(self._order.seed & (1 << 64) - 1) ^ position) / (1 << 64)
        if rate is None or chance >= self._config.retry_share:
            return None
        return f"tried again outside the band: {_shown(rate)}"


def _shown(rate: PassRate) -> str:
    return f"pass rate {rate.share:.3g} ({rate.passed} of {rate.scored}, ordinal {rate.ordinal})"
