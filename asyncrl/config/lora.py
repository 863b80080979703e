"""Section of a low-rank adapter that is trained in place of the model's own weights."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from asyncrl.config.section import Section


class LoraConfig(Section):
    """LoRA (arXiv:2106.09685): a weight W of a layer stays as it is, and alpha / rank x B A is added to it and trained.

    Gradients, optimizer and checkpoints are of A and B alone, and the frozen weights lie in memory in model.dtype where
    the model directory has them so. The reference of a KL term is the model with its adapter off, so that no second one
    is loaded. Needs peft: `pip install 'asyncrl[lora]'`.
    """

    rank: int = Field(0, ge=0)
    """Rows of A and columns of B in each adapted layer. 0: no adapter, every weight is trained."""
    alpha: float = Field(32.0, gt=0)
    """What an adapter adds is scaled by alpha / rank."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Layers that get an adapter, by the last parts of their names (q_proj, v_proj, ...); all-linear: every linear
    layer but the head."""
    init: Literal["kaiming", "gaussian"] = "kaiming"
    """How A begins; B begins at zero, so that version 0 is the model itself."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout before A; only 0 is allowed."""
    path: Path | None = None
    """Directory in peft's form with an adapter to go on from, of the rank, alpha and layers set here. The reference
    stays the model without it. None: a new one."""
    sync: Literal["merged", "adapter"] = "merged"
    """What travels to the servers: the changes of the weights with the adapter added, which every server can hold; or
    the adapter alone, which the server adds to the model itself (the local engine)."""
    wire_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of A and B where they travel alone. With float32 servers hold, bit for bit, what they would hold if the sums
    travelled; bfloat16 takes about a quarter of the bytes and rounds what is added by 2^-9 of itself."""
    export_merged: bool = True
    """Export the weights with the adapter added too, beside the adapter in peft's form."""

    @property
    def travels_as(self) -> str | None:
        """Type of A and B on the wire, if they travel alone."""
        return self.wire_dtype if self.sync == "adapter" else None

    @field_validator("dropout")
    @classmethod
    def what_is_trained_is_what_is_sampled(cls, dropout: float) -> float:
        """Refuse dropout: servers sample without it."""
        if dropout:
            raise ValueError(
                f"lora.dropout = {dropout}: servers sample from the adapter without dropout, so the trainer would take "
                "the gradient of another policy, and the ratio of the two would be noise at every token. Set it to 0; "
                "actor.weight_decay and algorithm.kl_coef hold an adapter back."
            )
        return dropout

    @field_validator("target_modules")
    @classmethod
    def there_is_something_to_train(cls, names: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """Refuse an empty list."""
        if not names:
            raise ValueError("lora.target_modules is empty, so nothing would be trained. Name layers, or all-linear.")
        return names
