"""The pure rules of staleness against slow, obvious versions of themselves, over all small inputs."""

from hypothesis import given
from hypothesis import strategies as st

from buffer import staleness
from buffer.staleness import NEVER_STALE

limits = st.integers(0, 5)
sizes = st.integers(1, 6)
counts = st.integers(0, 40)
numbers = st.integers(0, 100)


@given(limits, sizes, counts, counts)
def test_admission_fills_the_window_and_no_place_more(limit: int, per_version: int, ahead: int, taken: int) -> None:
    window = staleness.window(limit, per_version)
    assert window == sum(per_version for _ in range(limit + 1))
    places = max(0, window - ahead - taken)
    assert staleness.admits(ahead, taken, window) is (places > 0)
    admitted = 0
    while staleness.admits(ahead + admitted, taken, window):
        admitted += 1
    assert admitted == places


@given(numbers, limits, sizes, counts, counts)
def test_what_is_admitted_is_due_within_the_limit_so_some_server_may_start_it(
    trained: int, limit: int, per_version: int, ahead: int, taken: int
) -> None:
    due = staleness.due(trained, ahead, taken, per_version)
    # Consume the groups before it, a version's at a time.
    number, before = trained, ahead + taken
    while before >= per_version:
        number, before = number + 1, before - per_version
    assert due == number
    start = staleness.start_from(trained, ahead, taken, per_version, limit)
    assert staleness.lag(due, start) <= limit
    if staleness.admits(ahead, taken, staleness.window(limit, per_version)):
        assert start <= trained, "a server with the trained weights will do"


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(-20, 120)), numbers, limits)
def test_stale_is_whatever_lags_more_than_the_limit(effective: dict[str, int], number: int, limit: int) -> None:
    assert staleness.stale(effective, number, limit) == sorted(k for k, v in effective.items() if number - v > limit)
    assert staleness.stale(effective, number, None) == []


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from("abc"))), st.integers(0, 20), limits)
def test_a_group_stays_only_if_all_its_members_do(rows: list[tuple[int, str]], number: int, limit: int) -> None:
    kept = staleness.kept_groups([oldest for oldest, _ in rows], [group for _, group in rows], number, limit)
    assert kept == [all(number - o <= limit for o, g in rows if g == group) for _, group in rows]


@given(numbers, numbers, limits)
def test_a_last_chance_is_fresh_now_and_stale_one_version_later(effective: int, number: int, limit: int) -> None:
    fresh_now = not staleness.stale({"g": effective}, number, limit)
    fresh_next = not staleness.stale({"g": effective}, number + 1, limit)
    assert staleness.last_chance(effective, number, limit) is (fresh_now and not fresh_next)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 6), st.integers(0, 8))
def test_a_lease_waits_only_while_waiting_can_save_a_group(ready_last: int, flying: int, count: int, more: int) -> None:
    remaining = count + more  # groups that this version still takes
    waits = staleness.must_wait(ready_last, flying, count, remaining)
    # Last-chance groups are taken first, so this batch has room for so many of those in flight.
    room = max(0, count - ready_last)
    saved_later = min(flying, remaining - count)
    saved_by_waiting = min(flying, room)
    assert waits is (saved_by_waiting > 0 and saved_later < flying)


@given(st.integers(0, 30), st.integers(0, 30), limits)
def test_doomed_means_too_old_for_the_first_version_that_could_take_it_and_so_for_all(
    effective: int, earliest: int, limit: int
) -> None:
    assert staleness.doomed(effective, earliest, limit) is all(
        staleness.lag(number, effective) > limit for number in range(earliest, earliest + 50)
    )


@given(numbers, limits)
def test_a_group_without_a_token_is_stale_at_no_version(number: int, limit: int) -> None:
    assert staleness.stale({"g": NEVER_STALE}, number, limit) == []
    assert staleness.lag(number, NEVER_STALE) == 0
    assert NEVER_STALE < 1 << 53, "Lua's numbers are doubles"


@given(numbers, st.integers(0, 150))
def test_a_lag_is_never_negative(number: int, effective: int) -> None:
    assert staleness.lag(number, effective) == max(0, number - effective)
