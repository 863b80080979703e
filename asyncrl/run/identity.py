"""What a run is made from, so that two commands that do not agree refuse each other at once."""

from collections.abc import Iterable, Mapping, Sequence

from asyncrl.config import Config, RewardConfig
from asyncrl.data import Dataset, open_dataset
from asyncrl.data.values import Json
from asyncrl.envs.lookup import scores_itself
from asyncrl.envs.rewards import check_sources
from asyncrl.envs.rewards.routes import route_of, routes_of
from asyncrl.rollout.chat import ChatTemplate
from asyncrl.rollout.prompts import MixedOrder, Order, PromptOrder
from buffer import RunRecord

SCHEMA = 1
Tools = Sequence[Mapping[str, Json]]


def open_prompts(config: Config, chat: ChatTemplate, shown: Tools = ()) -> tuple[Dataset, Dataset | None]:
    """The training prompts, and the held-out ones if there are any.

    Args:
        shown: see open_dataset.
    Raises:
        ConfigError: rollout.environment is no row of the table, and no code of your own either.
        DataError: names file, row and reason.
        RewardError: a data_source has no reward: no server, no reward file, no rule of the table. An environment that
            scores its episodes itself needs none; your own is asked by the rollout workers, which load it.
    """
    train = open_dataset(config.data.training_files, config.data, chat, shown)
    held_out = open_dataset(config.data.val_files, config.data, chat, shown) if config.data.val_files else None
    if scores_itself(config.rollout.environment) is False:
        check_rewards(config, train, held_out)
    return train, None if held_out is None else held_out.first(config.eval.max_prompts)


def check_rewards(config: Config, *datasets: Dataset | None) -> None:
    """Refuse prompts that nothing would score. Raises RewardError: see open_prompts."""
    for dataset in filter(None, datasets):
        check_sources(_from_table(config.rollout.reward, dataset.report.data_sources))


def prompt_order(config: Config, train: Dataset) -> Order:
    """Which training prompt an ordinal, or a position of a curriculum, stands for.

    Raises:
        DataError: the weights of data.sources have no cycle of a reasonable length.
    """
    data, seed = config.data, config.run.seed
    if not data.sources:
        return PromptOrder(len(train), seed, data.shuffle)
    rows = iter(file.num_usable for file in train.report.files)
    sizes = [sum(next(rows) for _ in source.files) for source in data.sources]
    return MixedOrder(sizes, [source.weight for source in data.sources], seed, data.shuffle)


def _from_table(reward: RewardConfig, data_sources: Iterable[str]) -> list[str]:
    """The data sources that a rule of the table is needed for."""
    routes = routes_of(reward)
    return [source for source in data_sources if route_of(routes, source).asks_table]


def run_record(config: Config, train: Dataset, chat: ChatTemplate) -> RunRecord:
    """The part of the run record that both clusters know: equal on both, or the second one is refused."""
    return RunRecord(
        schema=SCHEMA,
        dataset=train.fingerprint,
        seed=config.run.seed,
        group_size=config.rollout.n,
        order=config.staleness.order,
        tokenizer=chat.fingerprint,
    )
