"""Which ranks train the same groups, and whose numbers count."""

import pytest

from asyncrl.config import ParallelConfig
from asyncrl.trainer.meshes import Place, place_of


def places(**sizes):
    parallel = ParallelConfig(**sizes)
    return [place_of(rank, parallel) for rank in range(parallel.world)]


def test_alone_a_rank_trains_everything():
    assert places() == [Place(0, 1, 1, True)]


def test_ranks_that_share_parameters_train_different_groups():
    assert places(fsdp=2) == [Place(0, 2, 2, True), Place(1, 2, 2, True)]


def test_neighbours_that_share_products_or_rows_train_the_same_groups_and_count_once():
    assert places(fsdp=2, tp=2) == [
        Place(0, 2, 2, True),
        Place(0, 2, 2, False),
        Place(1, 2, 2, True),
        Place(1, 2, 2, False),
    ]
    # Gradients are averaged over the parts of a row, and over the slices of a product they are not.
    assert [place.averaged for place in places(cp=2, tp=2)] == [2] * 4
    assert [(place.data_rank, place.counts) for place in places(cp=2, fsdp=2)] == [
        (0, True),
        (0, False),
        (1, True),
        (1, False),
    ]


def test_copies_train_different_groups():
    assert [(place.data_rank, place.data_world, place.averaged) for place in places(replicate=2, fsdp=2, tp=2)] == [
        (number, 4, 4) for number in (0, 0, 1, 1, 2, 2, 3, 3)
    ]


@pytest.mark.parametrize(("sizes", "world"), [({}, 1), ({"fsdp": 2, "tp": 3}, 6), ({"replicate": 2, "cp": 2}, 4)])
def test_the_world_is_the_product(sizes, world):
    assert ParallelConfig(**sizes).world == world
