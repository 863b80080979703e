"""Whether a server that somebody else started can take our weights; asked before anything is done to it.

A server that is told to load weights through a loader that it was not started with ends, so this is no courtesy.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerUnavailable
from asyncrl.inference.key import KEY_VARIABLE
from asyncrl.inference.launcher import LOADER, STAGE_DIR

START = f"`--custom-weight-loader {LOADER}`, asyncrl on its PYTHONPATH and {STAGE_DIR}"


class NotAdoptable(ServerUnavailable):
    """The server was started without something that it needs; its owner has to start it again."""


async def require_adoptable(
    client: ServerClient, *, num_ranks: int, record_experts: bool, keeps_kv: bool, stage_dir: Path
) -> None:
    """Check what the server says that it was started with.

    Args:
        num_ranks: inference.tp of this run.
        record_experts: whether it is to tell the experts of each token.
        keeps_kv: whether requests keep their cache across updates; see LaunchSpec.
        stage_dir: where its weights will lie, for the message.
    Raises:
        NotAdoptable: names what is missing, what was found, and how to start it.
        ServerUnavailable: it does not answer.
    """
    try:
        info = await client.server_info()
    except (RequestRefused, MalformedAnswer) as error:
        raise NotAdoptable(
            f"{client.url} does not say what it was started with ({error}). If it wants a key, set {KEY_VARIABLE}; it "
            f"must be SGLang 0.5.23 or later, or our local server, started with {START}={stage_dir}."
        ) from error
    loaders = _names(info.get("custom_weight_loader"))
    if LOADER not in loaders:
        raise NotAdoptable(
            f"{client.url} was started with the weight loaders {loaders or 'none'}, and ours is not among them: an "
            f"update would end it. Start it with {START}={stage_dir}."
        )
    _require(client.url, info, "tp_size", num_ranks, "inference.tp")
    if record_experts:
        _require(client.url, info, "enable_return_routed_experts", True, "inference.record_experts")
    if keeps_kv and info.get("disable_overlap_schedule") is False:
        raise NotAdoptable(
            f"{client.url} overlaps its steps, and with weightsync.kv = keep the first token after an update would be "
            "of the weights before it. Start it with --disable-overlap-schedule, or set weightsync.kv to recompute."
        )


def unseen(url: str, stage_dir: Path) -> NotAdoptable:
    """The error of a server whose loader ran and left nothing in its stage directory."""
    return NotAdoptable(
        f"{url}: the weight loader ran, and left no note in {stage_dir}: it looks elsewhere. The server must run on "
        f"this machine, with {STAGE_DIR}={stage_dir} in its environment; start it so."
    )


def _names(value: Any) -> list[str]:  # Any: whatever the server's JSON holds
    if isinstance(value, str):
        return value.split()
    return [str(name) for name in value] if isinstance(value, list | tuple) else []


def _require(url: str, info: Mapping[str, Any], name: str, wanted: object, key: str) -> None:
    """A setting that the server names must be what the run expects; one that it does not know has one value anyway."""
    if name in info and info[name] != wanted:
        raise NotAdoptable(
            f"{url} was started with {name} = {info[name]}, and {key} = {wanted} here. Start it anew, or change {key}."
        )
