"""What the training loop is made of, handed in by whoever assembles a rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl.algorithms import Algorithm
from asyncrl.config import Config
from asyncrl.metrics.sinks import Sink
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.gpus import Gpus
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.parallel import Ranks
from asyncrl.trainer.policy import Policy
from buffer import ReplayBuffer
from weightsync.log import VersionLog
from weightsync.publisher import WeightPublisher


@dataclass(frozen=True)
class TrainerParts:
    """The parts of one rank.

    Attributes:
        buffer: a connection of this rank's own: every rank fetches its payloads, rank 0 alone moves the ledger.
        log: the log of versions that the publisher writes to: who owns it, and which servers need an anchor.
        sinks: of rank 0; others have none.
        collective: this rank's place among the ranks.
        run_dir: where samples and the export go.
        origin_dir: version 0.0 as the servers have it.
        heldout: number of held-out prompts; 0: no evaluation.
    """

    config: Config
    buffer: ReplayBuffer
    publisher: WeightPublisher
    log: VersionLog
    learner: Learner
    gpus: Gpus
    sinks: Sequence[Sink]
    checkpoints: Checkpoints
    collective: Ranks
    run_dir: Path
    origin_dir: Path
    heldout: int = 0

    @property
    def policy(self) -> Policy:
        """The trained model."""
        return self.learner.policy

    @property
    def algorithm(self) -> Algorithm:
        """What is optimised."""
        return self.learner.algorithm
