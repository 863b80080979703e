"""Prompts by result: what is offered, why, and that a run goes on whatever the results are."""

from collections.abc import Sequence

import pytest

from asyncrl.config.data import CurriculumConfig
from asyncrl.rollout import curriculum
from asyncrl.rollout.curriculum import FRESH_S, LOOKED_AT, MOST_LOOKED_AT, OFFERED, POLICIES, Curriculum
from asyncrl.rollout.prompts import PromptOrder
from buffer import PassRate

CONFIG = CurriculumConfig(policy="pass_rate", low=0.25, high=0.75, retry_share=0.0)


class Ledger:
    """Results by prompt."""

    def __init__(self, rates: dict[int, PassRate] | None = None) -> None:
        self.rates = rates or {}
        self.num_asked = 0

    def __call__(self, prompts: Sequence[int]) -> list[PassRate | None]:
        self.num_asked += 1
        return [self.rates.get(prompt) for prompt in prompts]


def offered(ledger: Ledger, config: CurriculumConfig = CONFIG, size: int = 1000) -> Curriculum:
    return Curriculum(config, PromptOrder(size, seed=1, shuffle=False), ledger)


def test_the_names_of_policies_are_those_that_the_configuration_takes() -> None:
    field = CurriculumConfig.model_fields["policy"].annotation
    assert set(POLICIES) | {"none"} == set(field.__args__)  # type: ignore[union-attr]  # a Literal


def test_prompts_in_the_band_and_new_ones_are_offered_and_the_others_passed_over() -> None:
    rates = {0: PassRate(0, 8, 3), 1: PassRate(2, 8, 4), 2: PassRate(6, 8, 5), 3: PassRate(7, 8, 6)}
    draws = offered(Ledger(rates)).offers()
    assert [draw.position for draw in draws] == [1, 2, *range(4, 4 + OFFERED - 2)]
    assert draws[0].reason == "pass rate 0.25 (2 of 8, ordinal 4)"
    assert draws[2].reason == "no result yet"
    assert all(draw.prompt == draw.position for draw in draws)


def test_offers_stand_for_a_moment_and_are_looked_up_anew_once_one_is_taken() -> None:
    ledger, now = Ledger(), [0.0]
    one = Curriculum(CONFIG, PromptOrder(1000, seed=1, shuffle=False), ledger, clock=lambda: now[0])
    assert one.offers() == one.offers()
    assert ledger.num_asked == 1
    ledger.rates[0] = PassRate(8, 8, 0)
    assert one.offers()[0].position == 0
    now[0] += FRESH_S
    assert one.offers()[0].position == 1
    ledger.rates[3] = PassRate(8, 8, 0)
    one.passed(3)
    assert one.offers()[0].position == 4
    one.passed(2)
    assert one.offers()[0].position == 4, "the ledger never goes back"
    one.passed(10_000)
    assert one.offers()[0].position == 10_001, "ten epochs later prompt 0 is still outside"


def test_some_of_the_others_are_tried_again_the_same_for_every_worker() -> None:
    ledger = Ledger({prompt: PassRate(8, 8, 0) for prompt in range(1000)})
    config = CONFIG.model_copy(update={"retry_share": 0.1})
    first, second = offered(ledger, config).offers(), offered(ledger, config).offers()
    assert first == second
    assert first[0].reason == "tried again outside the band: pass rate 1 (8 of 8, ordinal 0)"
    gaps = (first[-1].position - first[0].position) / (len(first) - 1)
    assert 5 < gaps < 20, "about one of ten"


def test_a_run_goes_on_when_no_prompt_is_in_the_band() -> None:
    ledger = Ledger({prompt: PassRate(0, 8, 0) for prompt in range(10)})
    one = offered(ledger, size=10)
    (draw,) = one.offers()
    assert draw.position == 0
    assert draw.reason == f"none of the next {MOST_LOOKED_AT} prompts is in the band"
    assert ledger.num_asked == MOST_LOOKED_AT // LOOKED_AT, "bounded, whatever the results are"


@pytest.mark.parametrize("low", [0.0, 0.5])
def test_the_ends_of_the_band_belong_to_it(low: float) -> None:
    config = CurriculumConfig(policy="pass_rate", low=low, high=1.0)
    assert curriculum.in_band(config, PassRate(int(8 * low), 8, 0)) is not None
    assert curriculum.in_band(config, PassRate(8, 8, 0)) is not None
    with pytest.raises(ValueError, match="no pass rate"):
        CurriculumConfig(low=0.9, high=0.1)
