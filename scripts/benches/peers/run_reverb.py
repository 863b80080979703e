"""Reverb 0.14 as a buffer of groups: a FIFO table, each item read once. Not durable: its checkpoints are explicit.

    python run_reverb.py PRODUCERS GROUPS     in an environment of reverb.txt; prints CPU ms a group as one JSON line

One item is one group of 24 arrays. Producers and the consumer are processes of their own; the server lives in this one,
whose CPU while they run is the server's. The consumer streams.
"""

import json
import multiprocessing as mp
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import reverb
from groups import READY_MADE, make_groups

TABLE, START_S, RUN_S = "train", 120, 900


def produce(address, seed, count, barrier, answers):
    """Insert `count` groups; the CPU seconds it took."""
    client = reverb.Client(address)
    flat = [[array for one in group for array in one] for group in make_groups(READY_MADE, seed=seed)]
    client.server_info()
    barrier.wait(START_S)
    start = time.process_time()
    for index in range(count):
        client.insert(flat[index % READY_MADE], {TABLE: 1.0})
    answers.put(("producer", time.process_time() - start))


def consume(address, count, barrier, answers):
    """Take `count` groups; the CPU seconds it took."""
    client = reverb.Client(address)
    client.server_info()
    barrier.wait(START_S)
    start, num_tokens = time.process_time(), 0
    for sample in client.sample(TABLE, num_samples=count, emit_timesteps=False):
        num_tokens += sum(sample.data[index].size for index in range(0, 24, 3))
    assert num_tokens
    answers.put(("consumer", time.process_time() - start))


def main(num_producers, count):
    """One repetition."""
    table = reverb.Table(
        TABLE,
        reverb.selectors.Fifo(),
        reverb.selectors.Fifo(),
        max_size=1_000_000,
        max_times_sampled=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    server, spawn = reverb.Server(tables=[table]), mp.get_context("spawn")
    address, share = f"localhost:{server.port}", count // num_producers
    barrier, answers = spawn.Barrier(num_producers + 2), spawn.Queue()
    processes = [spawn.Process(target=consume, args=(address, share * num_producers, barrier, answers), daemon=True)]
    processes += [
        spawn.Process(target=produce, args=(address, seed, share, barrier, answers), daemon=True)
        for seed in range(num_producers)
    ]
    for process in processes:
        process.start()
    barrier.wait(START_S)
    start = time.process_time()
    seconds = {"producer": 0.0, "consumer": 0.0}
    for _ in processes:
        role, spent = answers.get(timeout=RUN_S)
        seconds[role] += spent
    seconds["server"] = time.process_time() - start
    for process in processes:
        process.join(30)
    server.stop()
    print(json.dumps({role: 1000 * spent / (share * num_producers) for role, spent in seconds.items()}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
