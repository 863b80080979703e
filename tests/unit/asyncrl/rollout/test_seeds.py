"""Seeds: the same place gives the same numbers, another place others."""

from asyncrl.rollout.seeds import environment_seed, sampling_seed


def test_a_seed_is_a_function_of_its_place_and_fits_the_servers_integer() -> None:
    assert sampling_seed(1, "train", 2, 3, 4) == sampling_seed(1, "train", 2, 3, 4)
    assert 0 <= sampling_seed(2**63 - 1, "eval", 2**40, 3, 4) < 2**63


def test_every_part_of_the_place_changes_the_seed() -> None:
    """B212: siblings on two servers are sent different seeds."""
    places = [
        sampling_seed(run, stream, ordinal, episode, row)
        for run in (0, 1)
        for stream in ("train", "eval")
        for ordinal in (0, 1)
        for episode in (0, 1)
        for row in (0, 1)
    ]
    others = [environment_seed(run, "train", ordinal, 0) for run in (0, 1) for ordinal in (0, 1)]
    assert len({*places, *others}) == len(places) + len(others)


def test_the_seed_of_a_known_place_never_changes_between_releases() -> None:
    # A run that is resumed after an update would otherwise draw other answers for the same ordinals.
    assert sampling_seed(0, "train", 0, 0, 0) == 7712375960500741298
