"""A step may cost so many filtered groups and no more."""

from types import SimpleNamespace
from typing import cast

from asyncrl.trainer.signals import Signals
from buffer import ReplayBuffer


class Counting:
    """A buffer whose only fact is how many groups were filtered."""

    def __init__(self) -> None:
        self.filtered = 0

    def usage(self) -> SimpleNamespace:
        return SimpleNamespace(reasons={"zero_variance": self.filtered, "worker_error": 99})


def test_the_bound_is_of_one_step_and_says_what_to_do() -> None:
    buffer = Counting()
    signals = Signals(cast(ReplayBuffer, buffer), max_batches=2, groups_per_step=3)
    buffer.filtered = 5
    assert signals.missing() == ""
    signals.leased()
    buffer.filtered = 10
    assert signals.missing() == ""
    buffer.filtered = 11
    assert "6 groups of equal rewards were generated for one step" in signals.missing()
    assert "max_gen_batches = 2 allows 6" in signals.missing()


def test_without_a_bound_nothing_is_asked() -> None:
    assert Signals(cast(ReplayBuffer, None), max_batches=0, groups_per_step=3).missing() == ""
