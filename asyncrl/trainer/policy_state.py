"""What a checkpoint holds of a policy: master weights and AdamW's moments, by rank, and the way back."""

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from asyncrl.errors import CheckpointError
from asyncrl.trainer import optimizer as optim
from asyncrl.trainer import randomness
from asyncrl.trainer.meshes import Meshes, is_first_holder
from asyncrl.trainer.policy import Policy
from asyncrl.trainer.rank_files import Box, Piece, RankFiles, box_of, local

WEIGHTS = "weights/"
RANDOM = "random/"


def pieces(policy: Policy) -> Iterator[Piece]:
    """This rank's part: weights, moments (none before the first optimizer step) and random states."""
    yield from model_pieces("", policy.named_parameters(), policy.optimizer, policy.ranks.meshes)
    for name, state in randomness.save_state().items():
        shape = tuple(state.shape)
        yield Piece(RANDOM + name, state, Box(shape, (0,) * len(shape), shape))


def model_pieces(
    prefix: str, parameters: Mapping[str, nn.Parameter], optimizer: optim.GuardedAdamW, meshes: Meshes | None
) -> Iterator[Piece]:
    """A model's weights and moments on this rank, but for copies of what an earlier rank holds; every name begins with
    `prefix`."""
    for name, parameter in parameters.items():
        if not is_first_holder(parameter, meshes):
            continue
        yield Piece(prefix + WEIGHTS + name, local(parameter), box_of(parameter))
        for moment, value in optim.moments(optimizer.adamw, parameter).items():
            yield Piece(f"{prefix}{moment}/{name}", local(value), box_of(value))


def restore(policy: Policy, files: RankFiles, optimizer_steps: int) -> None:
    """Put weights, moments and random states back; the number of ranks may differ from when they were written.

    Raises:
        CheckpointError: the checkpoint is of another model, or files are missing.
    """
    restore_model("", policy.named_parameters(), policy.optimizer, files, optimizer_steps)
    saved_random = files.own(policy.ranks.rank, RANDOM)
    if saved_random:
        randomness.load_state(saved_random)


@torch.no_grad()
def restore_model(
    prefix: str,
    parameters: Mapping[str, nn.Parameter],
    optimizer: optim.GuardedAdamW,
    files: RankFiles,
    optimizer_steps: int,
) -> None:
    """Put back what `model_pieces` gave, on however many ranks; raises as `restore` does."""
    weights = prefix + WEIGHTS
    stored = {name.removeprefix(weights) for name in files.names() if name.startswith(weights)}
    differing = sorted(stored ^ parameters.keys())
    if differing:
        where = "the checkpoint" if differing[0] in stored else "the model"
        raise CheckpointError(
            f"{len(differing)} tensors are not in both the checkpoint and the model; {differing[0]} is only in "
            f"{where}. The checkpoint is of another model: resume with the model it was made from."
        )
    has_moments = any(name.startswith(f"{prefix}exp_avg/") for name in files.names())
    for name, parameter in parameters.items():
        files.read_into(weights + name, parameter)
        if has_moments:
            moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
            for key, value in moments.items():
                files.read_into(f"{prefix}{key}/{name}", value)
            optim.restore_moments(optimizer.adamw, parameter, moments, optimizer_steps)
    optimizer.steps = optimizer_steps
