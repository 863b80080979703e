"""Which scorers make the reward of which data source, and with which weights."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from asyncrl.config.reward import FILE, TABLE, RewardConfig
from asyncrl.envs.rewards.cache import CachedScorer, ScoreCache
from asyncrl.envs.rewards.http import RewardServer
from asyncrl.envs.rewards.judge import Judge
from asyncrl.envs.rewards.limits import Share
from asyncrl.envs.rewards.processes import FunctionScorer
from asyncrl.envs.rewards.scorer import Scorer


@dataclass(frozen=True)
class Route:
    """A way to score the answers of some data sources (none named: of all).

    Attributes:
        scorers: (name, weight); their scores are added up.
        is_sum: whether scores are kept as parts beside the sum; without it the only scorer's reward is the reward.
    """

    scorers: tuple[tuple[str, float], ...]
    data_sources: tuple[str, ...] = ()
    is_sum: bool = False

    @classmethod
    def to(cls, name: str, data_sources: tuple[str, ...] = ()) -> "Route":
        """All from one scorer."""
        return cls(((name, 1.0),), data_sources)

    def takes(self, data_source: str) -> bool:
        """Whether it scores answers of this source."""
        return not self.data_sources or data_source in self.data_sources

    @property
    def asks_table(self) -> bool:
        """Whether it needs a rule for each of its data sources."""
        return any(name == TABLE for name, _ in self.scorers)


def routes_of(config: RewardConfig) -> list[Route]:
    """All routes, in the order in which they are looked at: combinations, single scorers, the file or the table."""
    found = [
        Route(tuple((one.scorer, one.weight) for one in entry.scorers), entry.data_sources, is_sum=True)
        for entry in config.combine
    ]
    alone = ((name, sources) for _, name, sources in config.named() if sources or name not in config.combined)
    found += [Route.to(name, sources) for name, sources in alone]
    if any(not route.data_sources for route in found):
        return found
    is_file = config.file is not None and FILE not in config.combined
    return [*found, Route.to(FILE if is_file else TABLE)]


def route_of(routes: Sequence[Route], data_source: str) -> Route:
    """The first that takes the source; one of them takes any."""
    return next(route for route in routes if route.takes(data_source))


def scorers_of(config: RewardConfig, share: Share) -> dict[str, Scorer]:
    """Every scorer that a route names, by name. Nothing is started yet.

    Args:
        config: the rewards of the run.
        share: the part of limits per minute that this worker has.
    Raises:
        RewardError: a judge's key is not in the environment.
    """
    wanted = {name for route in routes_of(config) for name, _ in route.scorers}
    cache = ScoreCache(config.cache_bytes)
    return {
        scorer.name: CachedScorer(scorer, cache) if is_cached and config.cache_bytes else scorer
        for scorer, is_cached in _made(config, wanted, share)
    }


def _made(config: RewardConfig, wanted: Container[str], share: Share) -> Iterator[tuple[Scorer, bool]]:
    """Each scorer, and whether its scores are kept."""
    timeout_s = config.timeout_s
    for (_, name, _), server in zip(config.named(), config.servers, strict=False):  # they are named first
        yield RewardServer(name, server, timeout_s, share), server.cache
    for judge in config.judges:
        yield Judge(judge, timeout_s, share), judge.cache
    for own in config.functions:
        where = (own.name, own.workers, own.timeout_s or timeout_s, own.file, own.function)
        yield FunctionScorer(*where, batch_size=config.batch_size), own.cache
    if FILE in wanted:
        own_file = FunctionScorer(
            FILE, config.workers, timeout_s, config.file, config.function, batch_size=config.batch_size
        )
        yield own_file, False
    if TABLE in wanted:
        yield FunctionScorer(TABLE, config.workers, timeout_s), False
