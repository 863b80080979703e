"""How many rollout GPUs one Redis serves, from the server's CPU a group: the arithmetic, with what it assumes.

A GPU that generates 2,500 tokens a second makes a group of 8 x 2,304 tokens (the mean of this benchmark's) in 7.4 s. A
server that is kept at most 70 % busy has 700 ms of CPU a second. All of the server's CPU is counted as its one main
thread's, though the append-only file is written by others. The producers' CPU is on the rollout side, one share per
GPU; the consumer's is rank 0's if it fetched all by itself, and is spread over the ranks that fetch their own.
"""

TOKENS_PER_S_PER_GPU = 2500
GROUP_TOKENS = 8 * 2304
BUSY = 0.7
BYTES_A_TOKEN = 8.125


def served(server_ms: float, producer_ms: float, consumer_ms: float) -> dict[str, float]:
    """GPUs, and what they ask of the machines."""
    groups_per_s_per_gpu = TOKENS_PER_S_PER_GPU / GROUP_TOKENS
    groups_per_s = BUSY * 1000 / server_ms
    gpus = groups_per_s / groups_per_s_per_gpu
    return {
        "capacity_tokens_per_s_per_gpu": TOKENS_PER_S_PER_GPU,
        "capacity_group_tokens": GROUP_TOKENS,
        "capacity_groups_per_s": round(groups_per_s),
        "capacity_gpus_per_redis": round(gpus, -1),
        "capacity_mb_per_s": round(groups_per_s * GROUP_TOKENS * BYTES_A_TOKEN / 1e6),
        "capacity_producer_cores": round(groups_per_s * producer_ms / 1000, 2),
        "capacity_consumer_cores": round(groups_per_s * consumer_ms / 1000, 2),
    }
