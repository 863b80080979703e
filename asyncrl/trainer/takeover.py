"""The start of a trainer: from the newest checkpoint or version 0.0 to a branch of its own, which fences older ones."""

import logging
import secrets

from asyncrl import waits
from asyncrl.errors import CheckpointError
from asyncrl.trainer.agreement import Decision, decided_by_rank0
from asyncrl.trainer.checkpoint import Saved
from asyncrl.trainer.lineage import Lineage, digests_from_json
from asyncrl.trainer.parts import TrainerParts
from buffer.lineage import Ledger

log = logging.getLogger(__name__)


async def take_over(parts: TrainerParts, *, resume: bool) -> Lineage:
    """Load the newest checkpoint if `resume`, open a new branch of the ledger, and claim the log of versions for it.

    A fresh trainer opens its branch from (0, 0) by the same path. Every rank calls it together.
    Raises:
        CheckpointError: there are checkpoints, but none of them is sound or of this model.
    """
    saved = await _newest(parts) if resume else None
    lineage = Lineage(branch=0, number=0, step=0)
    ledger = None
    if saved is not None:
        learner = parts.learner
        await waits.blocking(
            "trainer reads a checkpoint",
            lambda: parts.checkpoints.load(saved, learner.policy, critic=learner.critic),
        )
        parts.learner.restore(saved.state)
        lineage.number, lineage.step = saved.name.number, saved.name.step
        lineage.digests = digests_from_json(saved.state["digests"])
        lineage.spent_before_s = float(saved.state.get("spent_s", 0.0))
        ledger = _ledger_of(saved)
        log.info("resuming from checkpoint %s at step %d", saved.path, lineage.step)
    elif resume:
        log.info("there is no checkpoint to resume from; starting from version 0.0")
    decision = await decided_by_rank0(parts.collective, lambda: _recover(parts, ledger, lineage.number))
    lineage.branch = decision["branch"]
    lineage.forks = {int(branch): (parent, number) for branch, (parent, number) in decision["forks"].items()}
    await waits.blocking("trainer claims the weights", parts.publisher.claim, lineage.branch)
    await waits.blocking("trainer claims the weights", parts.publisher.publish_origin, parts.origin_dir)
    return lineage


def _ledger_of(saved: Saved) -> Ledger:
    try:
        ledger, step = Ledger.from_json(saved.state["ledger"]), int(saved.state["step"])
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{saved.path} holds a ledger that this version cannot read: {error}") from error
    if (ledger.number, step) != (saved.name.number, saved.name.step):
        raise CheckpointError(
            f"{saved.path} is named version {saved.name.number} at step {saved.name.step}, but holds version "
            f"{ledger.number} at step {step}: it was renamed, and its weights would be trained on under another "
            "version's number. Give it the name that it had, or move it away."
        )
    return ledger


async def _newest(parts: TrainerParts) -> Saved | None:
    """Rank 0's choice, so that all ranks load the same one."""

    async def choose() -> Decision:
        saved = await waits.blocking("trainer reads a checkpoint", parts.checkpoints.newest)
        return {"path": ""} if saved is None else {"path": str(saved.path), "state": dict(saved.state)}

    decision = await decided_by_rank0(parts.collective, choose)
    if not decision["path"]:
        return None
    return parts.checkpoints.saved_at(decision["path"], decision["state"])


async def _recover(parts: TrainerParts, ledger: Ledger | None, number: int) -> Decision:
    config = parts.config
    nonce = secrets.token_hex(16)  # drawn once per start: a repeated call opens no second branch
    branch = await waits.blocking(
        "trainer updates the ledger",
        lambda: parts.buffer.recover(
            nonce,
            ledger,
            number=number,
            limit=config.plan.limit,
            groups_per_version=config.groups_per_version,
            seen=parts.log.owner(),
        ),
    )
    forks = (await waits.blocking("trainer updates the ledger", parts.buffer.ledger, branch, number, ())).forks
    return {"branch": branch, "forks": {str(key): list(fork) for key, fork in forks.items()}}
