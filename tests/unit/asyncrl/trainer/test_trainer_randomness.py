"""A step draws the same numbers whatever was drawn before it, and seeding it leaves nothing behind."""

import random

import numpy as np
import torch

from asyncrl.trainer.randomness import seed_step


def draws():
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_a_step_draws_the_same_after_any_other_and_two_steps_do_not():
    found = {}
    for step in (3, 4, 3):
        seed_step(7, step)
        found.setdefault(step, []).append(draws())
    assert found[3][0] == found[3][1]
    assert not set(found[3][0]) & set(found[4][0])


def test_seeding_notes_nothing_for_devices_that_are_not_opened():
    """Such notes are kept with the stack of their call: one more a step, for the whole run."""
    waiting = torch.cuda._queued_calls
    before = len(waiting)
    seed_step(0, 1)
    assert len(waiting) == before
