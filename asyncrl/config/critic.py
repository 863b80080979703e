"""Section of the critic: a second model that foretells rewards, for algorithms whose advantages are made with one."""

from pathlib import Path

from pydantic import Field

from asyncrl.config.optimizer import OptimizerConfig


class CriticConfig(OptimizerConfig):
    """The critic of an algorithm that has one (ppo_gae): a trunk like the policy's with one number a token.

    It goes over each step's groups as often as the policy does (actor.ppo_epochs, actor.ppo_mini_batches) and is saved
    in the same checkpoints. Without such an algorithm none is loaded.
    """

    path: Path | None = None
    """Directory with the Hugging Face model whose trunk it starts from; its tokens are the policy's. None: model.path.
    """
    lr: float = Field(1e-5, gt=0)
    """Peak learning rate of AdamW."""
    steps_before_policy: int = Field(0, ge=0)
    """Training steps at the start of a run in which the critic is trained and the policy is not: advantages of a critic
    that knows nothing are noise."""
    clip: float = Field(0.5, gt=0)
    """Largest change of a value in one step that the loss rewards, in units of reward."""
    lam: float = Field(1.0, ge=0, le=1)
    """Lambda of the returns that it learns. 1: what rewards came to, whatever it foretold; smaller trusts its own later
    values. The advantages have a lambda of their own."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Most tokens, padding included, in one forward pass of a rank. It changes memory and speed, never the gradient."""
    packing: bool | None = None
    """Lay the rows of a forward pass one after another, without padding; attention stays within each. false: pad them
    to the longest. None: pack where the model's attention can; true: refuse a model that cannot. It changes speed,
    never the gradient."""
    share_prompts: bool = True
    """Read the prompt that several rows of a forward pass begin with once for all of them, where rows are packed. It
    changes speed, never the gradient. Not done where it would save less than a sixteenth of the tokens, where ranks
    share rows (trainer.parallel.cp), and for rows with recorded experts."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
