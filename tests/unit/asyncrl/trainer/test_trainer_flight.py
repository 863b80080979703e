"""A call beside the loop: it is waited for with a deadline, and what it raises is raised where it is waited for."""

import threading

import pytest

from asyncrl.trainer.flight import Flight

SOON_S = 30.0


def test_a_flight_runs_beside_its_caller_and_lands_with_its_result():
    gate = threading.Event()
    flight = Flight("test", lambda: gate.wait(SOON_S) and threading.current_thread().name)
    assert not flight.is_over
    assert flight.landed() is None
    assert not flight.wait(0.01)
    gate.set()
    assert flight.wait(SOON_S)
    assert flight.landed() == "test"
    took_s = flight.seconds
    assert took_s == flight.seconds  # of the call, not until now


class Died(BaseException):
    """No Exception: it must not be lost either."""


@pytest.mark.parametrize("error", [ValueError("no"), Died("gone")])
def test_what_it_raises_is_raised_in_the_thread_that_waits(error):
    def call():
        raise error

    flight = Flight("test", call)
    assert flight.wait(SOON_S)
    with pytest.raises(type(error)) as raised:
        flight.landed()
    assert raised.value is flight.failure is error
