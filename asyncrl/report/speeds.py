"""How fast a run generates, as sums that processes add up: what `asyncrl tune` is fitted from.

Seconds of one call are counted by class, two to an octave of milliseconds, as lengths of answers are by tokens.
Requests are counted by how many their server had at once on average: a server decodes slower the more it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncrl.report.answer_lengths import class_of


@dataclass
class Durations:
    """Calls and their seconds, by class of milliseconds (see `answer_lengths.class_of`)."""

    calls: dict[int, int] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        """Count one call."""
        self._count(class_of(round(1000 * seconds)), 1, seconds)

    def merge(self, other: "Durations") -> None:
        """Count what another process counted."""
        for largest, calls in other.calls.items():
            self._count(largest, calls, other.seconds[largest])

    def _count(self, largest: int, calls: int, seconds: float) -> None:
        self.calls[largest] = self.calls.get(largest, 0) + calls
        self.seconds[largest] = self.seconds.get(largest, 0.0) + seconds

    def to_json(self) -> dict[str, list[float]]:
        """Largest milliseconds of a class -> [calls, seconds]."""
        return {str(largest): [self.calls[largest], self.seconds[largest]] for largest in sorted(self.calls)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Durations":  # plain data of json.load
        """The inverse of to_json. Raises ValueError, TypeError, KeyError: it is something else."""
        durations = cls()
        for largest, (calls, seconds) in data.items():
            durations._count(int(largest), int(calls), float(seconds))
        return durations


@dataclass
class Served:
    """Requests that a server answered while it had about as many at once.

    Attributes:
        requests: how many.
        tokens: that were sampled for them.
        seconds: from each request to its answer, queueing in the server included.
        at_once: sum over requests of the mean number of requests that the server had meanwhile.
    """

    requests: int = 0
    tokens: int = 0
    seconds: float = 0.0
    at_once: float = 0.0

    def merge(self, other: "Served") -> None:
        """Count what another process counted."""
        self.requests += other.requests
        self.tokens += other.tokens
        self.seconds += other.seconds
        self.at_once += other.at_once


def count(served: dict[int, Served], one: Served) -> None:
    """Count one request under its class."""
    served.setdefault(class_of(max(1, round(one.at_once))), Served()).merge(one)


@dataclass
class Speeds:
    """What the rollout side measures of itself.

    Attributes:
        environment: seconds of each call of an environment's `step`: tools and rewards; of training prompts.
        served: class of requests at once -> the requests, as one worker saw them.
        waited: seconds of each request that had to wait for a server at its version.
        servers: sums over hosts: activations, the seconds `stage_s` and `pause_s` of them, and the longest pause of
            each, which is mostly its first: a server compiles and loads then.
    """

    environment: Durations = field(default_factory=Durations)
    served: dict[int, Served] = field(default_factory=dict)
    waited: Durations = field(default_factory=Durations)
    servers: dict[str, float] = field(default_factory=dict)

    def host(self, facts: Mapping[str, float | str]) -> None:
        """Count what a host reported."""
        for name in ("activations", "stage_s", "pause_s", "longest_pause_s"):
            if name in facts and not isinstance(value := facts[name], str):
                self.servers[name] = self.servers.get(name, 0.0) + value

    def merge(self, other: "Speeds") -> None:
        """Count what another process counted."""
        self.environment.merge(other.environment)
        self.waited.merge(other.waited)
        for largest, served in other.served.items():
            self.served.setdefault(largest, Served()).merge(served)
        for name, value in other.servers.items():
            self.servers[name] = self.servers.get(name, 0.0) + value

    def to_json(self) -> dict[str, Any]:  # plain data for json.dump
        """Plain data: numbers, and maps with string keys."""
        return {
            "environment": self.environment.to_json(),
            "served": {
                str(largest): [one.requests, one.tokens, one.seconds, one.at_once]
                for largest, one in sorted(self.served.items())
            },
            "waited": self.waited.to_json(),
            "servers": self.servers,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Speeds":  # plain data of json.load
        """The inverse of to_json. Raises ValueError, TypeError, KeyError: it is something else."""
        served = {
            int(largest): Served(int(requests), int(tokens), float(seconds), float(at_once))
            for largest, (requests, tokens, seconds, at_once) in data["served"].items()
        }
        servers = {str(name): float(value) for name, value in data["servers"].items()}
        return cls(Durations.from_json(data["environment"]), served, Durations.from_json(data["waited"]), servers)
