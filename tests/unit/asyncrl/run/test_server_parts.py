"""How servers are started: what must differ between them."""

from asyncrl.run.server_parts import engine_seed


def test_no_two_servers_and_no_two_lives_of_one_draw_the_same_numbers() -> None:
    """B212: an engine that ignores the seeds of requests would answer a group's episodes alike on two servers."""
    seeds = {
        engine_seed(run, name, life) for run in (0, 1) for name in ("a-server-0", "a-server-1") for life in range(3)
    }
    assert len(seeds) == 12
    assert all(0 <= seed < 2**31 for seed in seeds), "numpy takes 32 bits"
    assert engine_seed(0, "a-server-0", 0) == engine_seed(0, "a-server-0", 0)
