"""KubeRay: a RayJob for each side, with the configuration in a ConfigMap and secrets by reference."""

from importlib import metadata

from pydantic import Field

from asyncrl.launch.job import Job, Side
from asyncrl.launch.target import NodeSettings, Target

OLDEST_RAY = "2.55.0"


class KuberaySettings(NodeSettings):
    """Settings of the target kuberay."""

    image: str = Field("", min_length=1)
    """Container image with asyncrl[trainer,ray] in it, and SGLang where inference.python says."""
    claim: str = "asyncrl"
    """PersistentVolumeClaim (ReadWriteMany) that holds run.dir, model and data."""
    shared: str = "/shared"
    """Where it is mounted; run.dir lies in it."""
    secret: str = "asyncrl"
    """Secret whose keys are the variables with secrets: ASYNCRL_REDIS_URL, and others if the run has them."""
    namespace: str | None = None
    """Namespace. None: kubectl's."""
    ray_version: str | None = None
    """Ray in the image. None: that of this environment."""
    shm_gib: int = Field(64, ge=1)
    """Size of /dev/shm, GiB: weights are staged there."""
    retries: int = Field(2, ge=0)
    """Times that a new Ray cluster is made after a failure: the head's machine may be the one that died."""


def facts(job: Job, side: Side, settings: KuberaySettings) -> dict[str, object]:
    """What the template needs to know beside the job."""
    return {"ray_version": settings.ray_version or _ray_here()}


def _ray_here() -> str:
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError:
        return OLDEST_RAY


TARGET = Target(
    name="kuberay",
    settings=KuberaySettings,
    side_file=("kuberay.yaml.j2", "{side}.yaml"),
    with_config=False,
    next_step="kubectl create secret generic NAME --from-literal=ASYNCRL_REDIS_URL=...; kubectl apply {files}",
    facts=facts,
)
