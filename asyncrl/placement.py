"""Which process gets which devices: arithmetic over counts, tested without a device."""

from dataclasses import dataclass

from asyncrl.errors import PreflightError


@dataclass(frozen=True)
class Placement:
    """Device indices by process; an empty tuple is a process on the CPU.

    Attributes:
        ranks: one tuple of device indices for each trainer rank.
        servers: one tuple of device indices for each started server, `tp` long.
    """

    ranks: tuple[tuple[int, ...], ...]
    servers: tuple[tuple[int, ...], ...]


def place(*, ranks: int, servers: int, tp: int, num_devices: int, shares_devices: bool) -> Placement:
    """Give each trainer rank one device and each server `tp` of them.

    Args:
        ranks: trainer ranks on this machine, 0 when only the rollout side is placed here.
        servers: servers started on this machine, 0 when only the trainer is placed here.
        tp: devices of one server.
        num_devices: devices of this machine; 0 places everything on the CPU.
        shares_devices: servers take the ranks' devices, in turns; otherwise they follow them.
    Raises:
        PreflightError: there are not enough devices.
    """
    if num_devices == 0:
        return Placement(ranks=((),) * ranks, servers=((),) * servers)
    first_server = 0 if shares_devices else ranks
    need = max(ranks, first_server + servers * tp)
    if need > num_devices:
        raise PreflightError(
            f"{ranks} trainer ranks and {servers} servers of {tp} devices need {need} devices, this machine has "
            f"{num_devices}. Lower trainer.parallel, inference.servers or inference.tp, or put the rollout side "
            "on another machine with `asyncrl serve-rollout`."
        )
    return Placement(
        ranks=tuple((rank,) for rank in range(ranks)),
        servers=tuple(
            tuple(range(first_server + index * tp, first_server + (index + 1) * tp)) for index in range(servers)
        ),
    )
