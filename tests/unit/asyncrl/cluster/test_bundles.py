"""What processes ask a cluster for."""

import pytest

from asyncrl.cluster import Seat, Wanted
from asyncrl.cluster.bundles import Bundle, BundleGroup, Plan, Spot


def test_ranks_are_packed_and_workers_spread_and_only_ranks_and_servers_get_devices() -> None:
    plan = Plan(Wanted(ranks=4, servers=2, tp=2, workers=3), threads=8, on_devices=True)
    assert plan.groups() == (
        BundleGroup("ranks", "PACK", Bundle(8, 1), 4),
        BundleGroup("servers", "PACK", Bundle(8, 2), 2),
        BundleGroup("workers", "SPREAD", Bundle(1, 0), 3),
    )
    assert plan.spot(Seat("ranks", 3)) == Spot("ranks", 3, 0, 1)
    assert plan.spot(Seat("servers", 1)) == Spot("servers", 1, 0, 2)
    assert plan.spot(Seat("workers", 2)) == Spot("workers", 2, 0, 0)


def test_without_devices_bundles_are_of_cpus_and_empty_groups_are_not_asked_for() -> None:
    plan = Plan(Wanted(servers=1, workers=1), threads=1, on_devices=False)
    assert [str(group) for group in plan.groups()] == ["1 x {CPU: 1} for servers", "1 x {CPU: 1} for workers"]
    assert plan.spot(Seat("servers", 0)).num_devices == 0


def test_ranks_on_the_cpu_leave_the_devices_to_servers() -> None:
    plan = Plan(Wanted(ranks=1, servers=1), threads=1, on_devices=True, ranks_on_cpu=True)
    assert [group.bundle.devices for group in plan.groups()] == [0, 1]


@pytest.mark.parametrize(
    ("ranks", "servers", "tp", "bundles"), [(4, 2, 2, 2), (4, 1, 2, 2), (3, 1, 2, 2), (1, 2, 1, 2)]
)
def test_who_shares_devices_is_in_one_bundle(ranks: int, servers: int, tp: int, bundles: int) -> None:
    wanted = Wanted(ranks=ranks, servers=servers, tp=tp, workers=1, shares_devices=True)
    plan = Plan(wanted, threads=2, on_devices=True)
    shared, workers = plan.groups()
    assert (shared.count, shared.bundle) == (bundles, Bundle(2 * (tp + 1), tp))
    assert workers.strategy == "SPREAD"
    for server in range(servers):
        assert plan.spot(Seat("servers", server)) == Spot(shared.name, server, 0, tp)
    of_ranks = [plan.spot(Seat("ranks", rank)) for rank in range(ranks)]
    assert len({(spot.bundle, spot.first_device) for spot in of_ranks}) == ranks, "each device has one rank"
    assert all(spot.first_device + spot.num_devices <= tp for spot in of_ranks)
    assert max(spot.bundle for spot in of_ranks) < bundles
