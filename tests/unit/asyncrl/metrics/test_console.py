"""A person sees step, reward, lag, speed, versions and what each side waits for; on a terminal and in a log."""

import io

import pytest
from rich.console import Console

from asyncrl.metrics.console import RunView, number

STEP: dict[str, float | str] = {
    "step": 12,
    "branch": 1,
    "critic/rewards/mean": 0.43125,
    "training/off_policy/lag/max": 2,
    "training/off_policy/lag/mean": 0.5,
    "perf/tokens_per_s": 5123.4,
    "weightsync/version": float((1 << 32) | 12),
    "weightsync/num_bytes": 31337,
    "val-core/sort_digits/reward/mean@4": 0.52,
    "val/test_score/sort_digits": 0.52,
}
REPORTS: dict[str, dict[str, float | str]] = {
    "trainer": {"waits_for": "trainer waits for fresh groups", "waits_s": 42.0, "why": "need 32, have ready=3"},
    "rollout worker-0": {"tokens_per_s": 3000.0, "version": "1.11", "waits_for": ""},
    "rollout worker-1": {"tokens_per_s": "1500"},
    "buffer": {"ready": 3, "in_flight": 29},
}


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def plain() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=False, width=300), out


def terminal(width: int = 160) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=True, width=width, height=40, color_system=None), out


def test_a_log_gets_one_line_a_step() -> None:
    console, out = plain()
    with RunView("tiny: separate_async", total_steps=80, console=console) as view:
        view.step(STEP)
        view.step({"step": 13, "critic/rewards/mean": 0.5})
    assert out.getvalue().splitlines() == [
        "tiny: separate_async",
        "step 12/80  reward 0.4313  lag max 2  lag mean 0.5  trained tokens/s 5123  version 1.12  "
        "bytes/version 31,337  held-out sort_digits 0.52",
        "step 13/80  reward 0.5",
    ]


def test_a_log_gets_a_line_about_long_waits_every_few_seconds_only() -> None:
    console, out = plain()
    clock = Clock()
    with RunView("t", console=console, clock=clock) as view:
        for _ in range(100):  # 50 seconds of beats
            clock.now_s += 0.5
            view.update(REPORTS)
    lines = out.getvalue().splitlines()[1:]
    assert len(lines) == 5
    assert lines[0] == "trainer: trainer waits for fresh groups, 42 s so far: need 32, have ready=3"


def test_a_log_gets_no_line_about_short_waits() -> None:
    console, out = plain()
    clock = Clock()
    with RunView("t", console=console, clock=clock) as view:
        clock.now_s += 60
        view.update({"trainer": {"waits_for": "groups", "waits_s": 0.3}})
    assert out.getvalue() == "t\n"


def test_a_worker_that_is_not_admitted_waits_from_when_that_was_first_reported() -> None:
    console, out = plain()
    clock = Clock()
    with RunView("t", console=console, clock=clock) as view:
        for reason in ("", "window", "window", "window"):
            view.update({"worker-0": {"not_admitted": reason, "wait/worker waits for admission": 99.0}})
            clock.now_s += 10
    assert out.getvalue().splitlines()[1:] == [
        "worker-0: admission (window), 10 s so far",
        "worker-0: admission (window), 20 s so far",
    ]


def test_a_terminal_shows_both_sides_the_buffer_and_what_is_waited_for() -> None:
    console, _ = terminal()
    view = RunView("tiny: separate_async", total_steps=80, console=console)
    view.step(STEP)
    view.update(REPORTS)
    with console.capture() as captured:
        console.print(view.render())
    shown = captured.get()
    for part in (
        "tiny: separate_async",
        "step 12/80",
        "reward 0.4313",
        "held-out sort_digits 0.52",
        "lag max 2",
        "trained tokens/s 5123",
        "generated tokens/s 4,500",
        "version 1.12",
        "bytes/version 31,337",
        "buffer  ready 3  in_flight 29",
        "trainer waits for fresh groups",
        "42 s",
        "need 32, have ready=3",
    ):
        assert part in shown, shown


def test_a_held_out_score_stays_on_the_screen_until_the_next() -> None:
    console, _ = terminal()
    view = RunView("t", total_steps=80, console=console)
    view.step(STEP)
    view.step({"step": 13, "critic/rewards/mean": 0.5})
    with console.capture() as captured:
        console.print(view.render())
    assert "held-out sort_digits 0.52" in captured.get()
    assert "step 13/80" in captured.get()


def test_the_numbers_of_an_earlier_step_do_not_take_the_view_back_but_a_resume_does() -> None:
    console, out = terminal()
    view = RunView("t", total_steps=80, console=console)
    for line in (STEP, {"step": 8, "branch": 1, "val-core/sort_digits/reward/mean@4": 0.75}):
        view.step(line)
    console.print(view.render())
    assert "step 12/80" in (text := out.getvalue())
    assert "held-out sort_digits 0.75" in text
    view.step({"step": 9, "branch": 2})
    console.print(view.render())
    assert "step 9/80" in out.getvalue()


def test_the_live_view_starts_and_ends_cleanly_and_messages_stand_above_it() -> None:
    console, out = terminal()
    with RunView("t", total_steps=4, console=console) as view:
        view.step(STEP)
        view.message("server-0 ended; started again")
    assert "server-0 ended; started again" in out.getvalue()


def test_text_from_elsewhere_is_text_and_no_markup_or_control_sequence() -> None:
    console, _ = terminal()
    view = RunView("[bold]t", console=console)
    view.update({"[red]x": {"waits_for": "[/red]\x1b[2J", "waits_s": 1}})
    with console.capture() as captured:
        console.print(view.render())
    assert "[bold]t" in captured.get()
    assert "[red]x" in captured.get()
    assert "\x1b[2J" not in captured.get()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (3.2e-6, "3.2e-06"), (7.0, "7"), (0.43125, "0.4313"), (1234567.8, "1,234,568"), (float("nan"), "nan")],
)
def test_small_numbers_are_not_rounded_to_nothing(value: float, text: str) -> None:
    assert number(value) == text


def test_a_process_that_fell_silent_long_ago_is_shown_no_more_and_times_of_reports_never() -> None:
    console, out = terminal()
    with RunView("run", console=console) as view:
        view.update(
            {
                "trainer": {"waits_for": "", "at_ms": 1_000_000.0},
                "worker-0.11": {"tokens_per_s": 10.0, "at_ms": 900_000.0},
                "worker-0.22": {"tokens_per_s": 20.0, "at_ms": 999_000.0},
            }
        )
    assert "worker-0.22" in out.getvalue()
    assert "worker-0.11" not in out.getvalue()
    assert "at_ms" not in out.getvalue()
