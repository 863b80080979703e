"""SkyPilot: a managed job for each side; one that asks for several machines starts a Ray of its own on them."""

from pydantic import Field

from asyncrl.launch.target import NodeSettings, Target


class SkypilotSettings(NodeSettings):
    """Settings of the target skypilot."""

    accelerator: str = "H100"
    """Kind of accelerator."""
    infra: str | None = None
    """Where, as SkyPilot writes it: aws/us-east-1, k8s/context. None: the cheapest."""
    image_id: str | None = None
    """Image with asyncrl in it, for example docker:registry/asyncrl:1. None: `setup` installs it."""
    setup: str = "pip install 'asyncrl[trainer,ray]'"
    """Command that installs asyncrl on a fresh machine."""
    volume: str = "asyncrl"
    """SkyPilot volume that holds run.dir, model and data. A bucket will not do: checkpoints are renamed."""
    shared: str = "/shared"
    """Where it is mounted; run.dir lies in it."""
    use_spot: bool = False
    """Take machines that may be preempted."""
    max_restarts: int = Field(3, ge=0)
    """Times that a job is started again after an error of its own."""


TARGET = Target(
    name="skypilot",
    settings=SkypilotSettings,
    side_file=("skypilot.yaml.j2", "{side}.yaml"),
    with_config=True,
    next_step="sky jobs launch --secret ASYNCRL_REDIS_URL FILE, for each of {files}",
)
