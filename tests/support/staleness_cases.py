"""Calls the buffer's rules of staleness with the names of the golden cases."""

from collections.abc import Callable, Mapping
from typing import Any  # a case's inputs and results are whatever its JSON holds

from buffer import staleness

Values = Mapping[str, Any]


def _admit(inputs: Values, params: Values) -> Values:
    window = staleness.window(_limit(params["max_lag"]), params["batch"])
    # Admitted in all = consumed by the versions trained + open or taken now.
    ahead = [admitted - params["current_version"] * params["batch"] for admitted in inputs["admitted"]]
    return {"may_submit": [staleness.admits(count, 0, window) for count in ahead]}


def _drop(inputs: Values, params: Values) -> Values:
    span = params["max_span"]
    limit = None if span is None else span - 1
    return {"dropped": staleness.stale(inputs["start_versions"], params["current_version"], limit)}


def _wait(inputs: Values, params: Values) -> Values:
    span = params["max_span"]
    limit = _limit(None if span is None else span - 1)
    in_flight, current, batch = inputs["inflight_start_versions"], params["current_version"], params["batch"]
    return {"may_train": staleness.may_train(in_flight, inputs["ready"], current, limit, batch)}


def _filter_lag(inputs: Values, params: Values) -> Values:
    limit = _limit(params["max_lag"])
    return {
        "keep": staleness.kept_groups(inputs["oldest_version"], inputs["group_ids"], params["current_version"], limit)
    }


def _limit(given: int | None) -> int:
    """No limit is one that nothing reaches."""
    return staleness.NEVER_STALE if given is None else given


STALENESS: Mapping[str, Callable[[Values, Values], Values]] = {
    "stale.admit": _admit,
    "stale.drop": _drop,
    "stale.wait": _wait,
    "stale.filter_lag": _filter_lag,
}
