"""TransferQueue 0.1.11 as a buffer of groups, by its sampler API: put, get_meta of a whole group, get_data, clear.

    python run_transferqueue.py PRODUCERS GROUPS     in an environment of transferqueue.txt; prints CPU ms a group

Producers and the consumer are ray actors. CPU is that of this process and of all that ray started: controller, storage
unit, producers, consumer, ray's own daemons. Jagged tensors: only real tokens travel. Ray's default of a low priority
for its workers is off, which on a shared machine would starve them.
"""

import json
import logging
import os
import sys
import time

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("RAY_worker_niceness", "0")

import psutil
import ray
import torch
import transfer_queue as tq
from groups import READY_MADE, TRAJECTORIES, make_groups
from tensordict import TensorDict

PART, FIELDS, WARM_UP, IDLE_S = "train", ["tokens", "logprobs", "mask"], 20, 60.0


def attach():
    """A client of the running controller."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    if not tq.interface._init_from_existing():
        raise RuntimeError("no TransferQueue controller")
    return tq.get_client()


@ray.remote(num_cpus=0)
class Producer:
    """Puts ready-made groups."""

    def __init__(self, seed):
        self.client = attach()
        self.columns = [
            [
                torch.nested.as_nested_tensor([torch.from_numpy(one[index]) for one in group], layout=torch.jagged)
                for index in range(3)
            ]
            for group in make_groups(READY_MADE, seed=seed)
        ]

    def run(self, count):
        """Put `count` groups."""
        for index in range(count):
            columns = dict(zip(FIELDS, self.columns[index % READY_MADE], strict=True))
            self.client.put(TensorDict(columns, batch_size=TRAJECTORIES), partition_id=PART)
        return count


@ray.remote(num_cpus=0)
class Consumer:
    """Takes one group at a time and clears it."""

    def __init__(self):
        self.client = attach()

    def run(self, count):
        """Take `count` groups."""
        taken, num_tokens, last = 0, 0, time.monotonic()
        while taken < count:
            meta = self.client.get_meta(FIELDS, TRAJECTORIES, PART, task_name=PART)
            if meta is None or meta.size == 0:
                if time.monotonic() - last > IDLE_S:
                    raise RuntimeError(f"no group for {IDLE_S} s after {taken} of {count}")
                time.sleep(0.001)
                continue
            data = self.client.get_data(meta)
            assert data["tokens"].shape[0] == TRAJECTORIES
            num_tokens += data["tokens"].values().numel()
            self.client.clear_samples(meta)
            taken, last = taken + 1, time.monotonic()
        return num_tokens


def cpu_s():
    """CPU seconds so far of this process and all below it."""
    own, total = psutil.Process(), 0.0
    for process in [own, *own.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def main(num_producers, count):
    """One repetition, after a few groups that warm up."""
    ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    logging.disable(logging.WARNING)
    sampler = tq.GRPOGroupNSampler(n_samples_per_prompt=TRAJECTORIES)
    tq.init(
        {
            "controller": {"sampler": sampler, "polling_mode": True},
            "backend": {"SimpleStorage": {"num_data_storage_units": 1}},
        }
    )
    consumer, producers = Consumer.remote(), [Producer.remote(seed) for seed in range(num_producers)]

    def move(share):
        puts = [one.run.remote(share) for one in producers]
        assert ray.get(consumer.run.remote(share * num_producers)) > 0
        ray.get(puts)

    move(WARM_UP)
    start, share = cpu_s(), count // num_producers
    move(share)
    spent = cpu_s() - start
    print(json.dumps({"all": 1000 * spent / (share * num_producers)}), flush=True)
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
