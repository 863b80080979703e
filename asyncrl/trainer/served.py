"""Version 0.0 as the servers have it: the model's directory, or the zeros of an adapter that travels alone."""

from dataclasses import dataclass
from pathlib import Path

from asyncrl.config import Config
from asyncrl.trainer.policy import Policy
from weightsync.adapter_origin import write_origin
from weightsync.collective import Collective, from_all, from_rank_zero
from weightsync.digest import digest_of_model_dir, total
from weightsync.manifest import Manifest

ORIGIN_DIR = "adapter-origin"


@dataclass(frozen=True)
class Served:
    """What a log of versions begins from.

    Attributes:
        directory: with the words of version 0.0.
        manifest: its layout.
    """

    directory: Path
    manifest: Manifest


def open_served(config: Config, policy: Policy, manifest: Manifest, ranks: Collective) -> Served:
    """What the servers of this run begin from. Every rank calls it together.

    Args:
        manifest: of model.path.
    """
    shapes = policy.weights.adapter_shapes()
    if shapes is None:
        return Served(config.model.path, manifest)
    base, directory = config.model.path, config.run.directory / ORIGIN_DIR

    def share() -> int:
        return digest_of_model_dir(base, manifest, ranks.rank, ranks.world)

    digest = total(from_all(ranks, share))
    from_rank_zero(ranks, lambda: str(write_origin(directory, shapes, config.lora.wire_dtype, base, digest)))
    return Served(directory, Manifest.from_model_dir(directory))
