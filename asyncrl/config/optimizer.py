"""What every model that is trained sets of its optimizer."""

from typing import Literal

from pydantic import Field

from asyncrl.config.section import Section


class OptimizerConfig(Section):
    """AdamW of one model, and the course of its learning rate."""

    lr: float = Field(1e-6, gt=0)
    """Peak learning rate of AdamW."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled weight decay."""
    grad_clip: float = Field(1.0, gt=0)
    """Largest global gradient norm."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps in which the learning rate rises linearly from 0."""
    lr_decay: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after warm-up, down to min_lr_ratio at trainer.steps."""
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    """Last learning rate as a share of the peak, for linear and cosine."""
