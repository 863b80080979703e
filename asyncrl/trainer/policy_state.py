"""What a checkpoint holds of a policy: master weights and AdamW's moments, by rank, and the way back."""

from collections.abc import Iterator

import torch

from asyncrl.errors import CheckpointError
from asyncrl.trainer import optimizer as optim
from asyncrl.trainer import randomness
from asyncrl.trainer.policy import Policy
from asyncrl.trainer.rank_files import Box, Piece, RankFiles, box_of, local

WEIGHTS = "weights/"
RANDOM = "random/"


def pieces(policy: Policy) -> Iterator[Piece]:
    """This rank's part: weights, moments (none before the first optimizer step) and random states."""
    for name, parameter in policy.named_parameters().items():
        yield Piece(WEIGHTS + name, local(parameter), box_of(parameter))
        for moment, value in optim.moments(policy.optimizer.adamw, parameter).items():
            yield Piece(f"{moment}/{name}", local(value), box_of(value))
    for name, state in randomness.save_state().items():
        shape = tuple(state.shape)
        yield Piece(RANDOM + name, state, Box(shape, (0,) * len(shape), shape))


@torch.no_grad()
def restore(policy: Policy, files: RankFiles, optimizer_steps: int) -> None:
    """Put weights, moments and random states back; the number of ranks may differ from when they were written.

    Raises:
        CheckpointError: the checkpoint is of another model, or files are missing.
    """
    parameters = policy.named_parameters()
    stored = {name.removeprefix(WEIGHTS) for name in files.names() if name.startswith(WEIGHTS)}
    differing = sorted(stored ^ parameters.keys())
    if differing:
        where = "the checkpoint" if differing[0] in stored else "the model"
        raise CheckpointError(
            f"{len(differing)} tensors are not in both the checkpoint and the model; {differing[0]} is only in "
            f"{where}. The checkpoint is of another model: resume with the model it was made from."
        )
    has_moments = any(name.startswith("exp_avg/") for name in files.names())
    for name, parameter in parameters.items():
        files.read_into(WEIGHTS + name, parameter)
        if has_moments:
            moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
            for key, value in moments.items():
                files.read_into(f"{key}/{name}", value)
            optim.restore_moments(policy.optimizer.adamw, parameter, moments, optimizer_steps)
    policy.optimizer.steps = optimizer_steps
    saved_random = files.own(policy.ranks.rank, RANDOM)
    if saved_random:
        randomness.load_state(saved_random)
