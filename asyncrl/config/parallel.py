"""Section of how the policy is split over trainer ranks."""

from pydantic import Field

from asyncrl.config.section import Section


class ParallelConfig(Section):
    """How the policy is split over trainer ranks, one process each: replicate x fsdp x cp x tp of them."""

    fsdp: int = Field(1, ge=1)
    """Ranks that share parameters, gradients and optimizer (FSDP2), and train different groups."""
    tp: int = Field(1, ge=1)
    """Ranks that share every matrix product (tensor parallel) and train the same groups; neighbours, on one machine.
    The model's heads, its key and value heads and its widths must be multiples of it."""
    cp: int = Field(1, ge=1)
    """Ranks that share the tokens of a row (context parallel) and train the same groups; parameters are split over
    them as over fsdp."""
    replicate: int = Field(1, ge=1)
    """Copies of all that, which train different groups and meet in their gradients (HSDP): on many machines, parameters
    then travel within one copy only."""

    offload: bool = False
    """Keep parameters, gradients and optimizer state in CPU memory: layers come to the device while they compute, and
    the optimizer runs on the CPU (FSDP2's offload). For models that do not fit otherwise."""

    @property
    def world(self) -> int:
        """Trainer ranks in all."""
        return self.replicate * self.fsdp * self.cp * self.tp

    @property
    def words(self) -> str:
        """What makes the number of ranks, for messages."""
        sizes = {"replicate": self.replicate, "fsdp": self.fsdp, "cp": self.cp, "tp": self.tp}
        parts = [f"{name} {size}" for name, size in sizes.items() if size > 1 or name == "fsdp"]
        return f"trainer.parallel ({' x '.join(parts)})"
