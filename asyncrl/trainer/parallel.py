"""Ranks: the process group, control messages between ranks as bytes, and which rank trains which groups."""

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.config import Config, ParallelConfig
from asyncrl.errors import ConfigError, PreflightError
from asyncrl.trainer.meshes import Meshes, Place, open_meshes, place_of

START_TIMEOUT_S = 600.0  # ranks import torch at different speeds; NCCL's own operations take seconds


class Channel(Protocol):
    """Messages between ranks: what weightsync calls a Collective. OneRank, ProcessGroup, GlooChannel."""

    rank: int
    world: int

    def gather(self, blob: bytes) -> list[bytes] | None:
        """Every rank's bytes by rank, on rank 0; None on the others."""
        ...

    def broadcast(self, blob: bytes | None) -> bytes:
        """Rank 0's bytes, on every rank; the others pass None."""
        ...

    def barrier(self) -> None:
        """Return when every rank is here."""
        ...


class Ranks(Channel, Protocol):
    """What a rank knows of the others. OneRank and ProcessGroup.

    Every method but the properties is collective: all ranks call it in the same order.
    """

    device: torch.device

    @property
    def meshes(self) -> Meshes | None:
        """The ranks that share parameters, matrix products and rows, or None where nothing is shared."""
        ...

    @property
    def place(self) -> Place:
        """Which groups this rank trains, and whether its numbers count."""
        ...

    def total(self, values: Tensor) -> Tensor:
        """Sums of a float64 vector on the CPU over the ranks that count, on every rank."""
        ...

    def sum(self, values: Tensor) -> Tensor:
        """Sums of a float64 vector on the CPU over all ranks, of which each has a part of its own."""
        ...

    def largest(self, value: int) -> int:
        """The largest of the ranks' numbers."""
        ...

    def channel(self, patience_s: float) -> "Channel":
        """A way of its own between the same ranks, for a thread that talks beside the loop."""
        ...


class OneRank:
    """The only rank: nothing is sent anywhere."""

    rank, world = 0, 1
    meshes: Meshes | None = None
    place = Place()

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")

    def gather(self, blob: bytes) -> list[bytes] | None:
        """Its own bytes."""
        return [blob]

    def broadcast(self, blob: bytes | None) -> bytes:
        """Its own bytes."""
        assert blob is not None
        return blob

    def barrier(self) -> None:
        """Nobody to wait for."""

    def total(self, values: Tensor) -> Tensor:
        """The values."""
        return values

    def sum(self, values: Tensor) -> Tensor:
        """The values."""
        return values

    def largest(self, value: int) -> int:
        """The value."""
        return value

    def channel(self, patience_s: float) -> Channel:
        """Itself."""
        return self


class GlooChannel:
    """Messages on a gloo group of their own. One thread at a time: the ranks must call it in the same order."""

    def __init__(self, rank: int, world: int, patience_s: float) -> None:
        """A collective of all ranks. `patience_s`: seconds that a call may wait for the other ranks."""
        self.rank, self.world = rank, world
        self._group = dist.new_group(range(world), backend="gloo", timeout=timedelta(seconds=patience_s))

    def gather(self, blob: bytes) -> list[bytes] | None:
        """Every rank's bytes by rank, on rank 0; None on the others."""
        sizes = torch.zeros(self.world, dtype=torch.int64)
        sizes[self.rank] = len(blob)
        dist.all_reduce(sizes, group=self._group)
        width = int(sizes.max())
        padded = torch.zeros(width, dtype=torch.uint8)
        padded[: len(blob)] = _as_tensor(blob)
        received = [torch.empty(width, dtype=torch.uint8) for _ in range(self.world)] if self.rank == 0 else None
        dist.gather(padded, received, dst=0, group=self._group)
        if received is None:
            return None
        return [part[:size].numpy().tobytes() for part, size in zip(received, sizes.tolist(), strict=True)]

    def broadcast(self, blob: bytes | None) -> bytes:
        """Rank 0's bytes, on every rank."""
        assert (blob is not None) == (self.rank == 0)
        size = torch.tensor([len(blob) if blob is not None else 0])
        dist.broadcast(size, src=0, group=self._group)
        data = _as_tensor(blob) if blob is not None else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, src=0, group=self._group)
        return blob if blob is not None else data.numpy().tobytes()

    def barrier(self) -> None:
        """Return when every rank is here."""
        dist.barrier(group=self._group)

    def reduce(self, values: Tensor, op: dist.ReduceOp.RedOpType) -> None:
        """Put the reduction over ranks in the place of `values`, on the CPU."""
        dist.all_reduce(values, op, group=self._group)


class ProcessGroup:
    """One of several ranks, one process each.

    Control messages travel on a channel of their own: they wait for groups as long as rank 0 does, while an operation
    on tensors that takes minutes is a fault.
    """

    def __init__(self, rank: int, sizes: ParallelConfig, device: torch.device, *, patience_s: float) -> None:
        """A collective of all ranks, of which there are as many as `sizes` make.

        Args:
            patience_s: seconds that a control message may wait for the other ranks.
        """
        if device.type == "cuda":
            torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        # A rank without others needs no address to meet at.
        store = dist.HashStore() if sizes.world == 1 else None  # type: ignore[attr-defined]  # torch lists it nowhere
        dist.init_process_group(
            backend, rank=rank, world_size=sizes.world, store=store, timeout=timedelta(seconds=START_TIMEOUT_S)
        )
        self.arrange(rank, sizes, device, patience_s=patience_s)

    def arrange(self, rank: int, sizes: ParallelConfig, device: torch.device, *, patience_s: float) -> None:
        """Take the place among the first ranks of the process group, which is open. A collective of all its ranks."""
        self.rank, self.world, self.device = rank, sizes.world, device
        self.place = place_of(rank, sizes)
        self._control = self.channel(patience_s)
        self._meshes = open_meshes(device.type, sizes)

    @property
    def meshes(self) -> Meshes | None:
        """The ranks that share parameters, matrix products and rows."""
        return self._meshes

    def channel(self, patience_s: float) -> GlooChannel:
        """Another group of the same ranks."""
        return GlooChannel(self.rank, self.world, patience_s)

    def gather(self, blob: bytes) -> list[bytes] | None:
        """Every rank's bytes by rank, on rank 0; None on the others."""
        return self._control.gather(blob)

    def broadcast(self, blob: bytes | None) -> bytes:
        """Rank 0's bytes, on every rank."""
        return self._control.broadcast(blob)

    def barrier(self) -> None:
        """Return when every rank is here."""
        self._control.barrier()

    def total(self, values: Tensor) -> Tensor:
        """Sums of a float64 vector over the ranks that count."""
        return self.sum(values if self.place.counts else torch.zeros_like(values))

    def sum(self, values: Tensor) -> Tensor:
        """Sums of a float64 vector over all ranks, of which each has a part of its own."""
        summed = values.detach().to("cpu", torch.float64, copy=True)
        self._control.reduce(summed, dist.ReduceOp.SUM)
        return summed.to(values.device)

    def largest(self, value: int) -> int:
        """The largest of the ranks' numbers."""
        number = torch.tensor([value])
        self._control.reduce(number, dist.ReduceOp.MAX)
        return int(number)

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


def open_ranks(config: Config) -> OneRank | ProcessGroup:
    """This process's place among the ranks, from RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.

    Raises:
        ConfigError: CUDA was asked for and there is no device for this rank.
        PreflightError: another number of ranks than trainer.parallel makes, or several without the address where they
            meet.
    """
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    sizes = config.trainer.parallel
    chosen = choose_device(config.trainer.device, int(os.environ.get("LOCAL_RANK", "0")))
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if world > 1 and name not in os.environ]
    if missing:
        raise PreflightError(
            f"WORLD_SIZE = {world}, but {' and '.join(missing)} is not set, so the ranks cannot meet. Start them with "
            "`asyncrl train`, or with torchrun."
        )
    if world != sizes.world:
        raise PreflightError(
            f"WORLD_SIZE = {world}, but {sizes.words} makes {sizes.world} ranks: some would wait for others that never "
            "come. Start as many as it makes, with `asyncrl train` or torchrun, or change trainer.parallel."
        )
    if world == 1 and not sizes.offload:
        return OneRank(chosen)
    # The others wait for rank 0 while it waits for groups, evaluates, or publishes again and again.
    patience_s = config.trainer.lease_wait_s + config.eval.deadline_s + START_TIMEOUT_S
    return ProcessGroup(rank, sizes, chosen, patience_s=patience_s)


def choose_device(device: str, local_rank: int) -> torch.device:
    """The device of a rank. Raises ConfigError if it does not exist."""
    found = torch.cuda.device_count() if device != "cpu" else 0
    if device == "cuda" and found <= local_rank:
        raise ConfigError(
            f"trainer.device = cuda, but rank {local_rank} of this machine has no device ({found} found). Lower "
            "trainer.parallel, or set trainer.device to auto or cpu."
        )
    return torch.device("cuda", local_rank) if found > local_rank else torch.device("cpu")


def assign(tokens: Mapping[int, int], world: int) -> list[list[int]]:
    """Which rank trains which groups: whole groups, balanced by tokens, in ordinal order within a rank.

    Args:
        tokens: tokens of each group by ordinal.
        world: number of ranks that train different groups.
    Returns:
        The ordinals of each rank, by its data_rank, ascending.
    """
    shares: list[list[int]] = [[] for _ in range(world)]
    loads = [0] * world
    for ordinal in sorted(tokens, key=lambda ordinal: (-tokens[ordinal], ordinal)):
        lightest = min(range(world), key=lambda rank: (loads[rank], rank))
        shares[lightest].append(ordinal)
        loads[lightest] += tokens[ordinal]
    return [sorted(share) for share in shares]


def mini_batches(ordinals: Sequence[int], count: int) -> list[list[int]]:
    """Cut a step's ordinals, in order, into at most `count` parts of nearly equal size; none is empty."""
    ordered = sorted(ordinals)
    parts: list[list[int]] = [[] for _ in range(min(count, len(ordered)))]
    for index, ordinal in enumerate(ordered):
        parts[index * len(parts) // len(ordered)].append(ordinal)
    return parts


def _as_tensor(blob: bytes) -> Tensor:
    return torch.frombuffer(bytearray(blob), dtype=torch.uint8) if blob else torch.empty(0, dtype=torch.uint8)
