"""What a checkpoint keeps besides tensors: where the lineage stands, the ledger, and what it was made with."""

from asyncrl.trainer.lineage import Lineage, digests_to_json
from asyncrl.trainer.parts import TrainerParts
from buffer.lineage import Ledger


def state_of(parts: TrainerParts, lineage: Lineage, ledger: Ledger) -> dict[str, object]:
    """Plain data, as it is now: what is made of it later must not change with the run."""
    return {
        "branch": lineage.branch,
        "number": lineage.number,
        "step": lineage.step,
        "spent_s": lineage.spent_s(),
        "optimizer_steps": parts.policy.optimizer_steps,
        **parts.learner.state(),
        **parts.policy.weights.facts(),
        "world": parts.collective.world,
        "ledger": ledger.to_json(),
        "forks": {str(branch): list(fork) for branch, fork in lineage.forks.items()},
        "digests": digests_to_json(lineage.digests),
        "config": parts.config.model_dump(mode="json"),
    }
