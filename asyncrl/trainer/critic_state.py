"""What a checkpoint holds of a critic, under names of its own beside the policy's, and the way back."""

from collections.abc import Iterator, Mapping
from typing import Any

from asyncrl.errors import CheckpointError
from asyncrl.trainer.critic import Critic
from asyncrl.trainer.policy_state import model_pieces, restore_model
from asyncrl.trainer.rank_files import Piece, RankFiles

CRITIC = "critic/"


def critic_pieces(critic: Critic) -> Iterator[Piece]:
    """This rank's part: weights, and moments (none before the first optimizer step)."""
    yield from model_pieces(CRITIC, critic.named_parameters(), critic.optimizer, critic.ranks.meshes)


def restore_critic(critic: Critic, files: RankFiles, state: Mapping[str, Any]) -> None:
    """Put weights and moments back; the number of ranks may differ from when they were written.

    Args:
        state: of the checkpoint, with what `Critic.state` gave under "critic".
    Raises:
        CheckpointError: the checkpoint has no critic or one of another model, or files are missing.
    """
    counts = state.get("critic")
    if counts is None or not any(name.startswith(CRITIC) for name in files.names()):
        raise CheckpointError(
            "The checkpoint holds no critic, but this run's algorithm trains one: its values would begin at zero in "
            "the middle of the run. Resume with the algorithm that wrote the checkpoint, or start a new run from its "
            "exported model."
        )
    restore_model(CRITIC, critic.named_parameters(), critic.optimizer, files, int(counts["optimizer_steps"]))
    critic.num_batches = int(counts["batches"])
