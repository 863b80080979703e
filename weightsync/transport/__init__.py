"""Transports of parts. `open_transport` picks one by the settings."""

from pathlib import Path

from weightsync.config import WeightsyncConfig
from weightsync.transport.base import Transport

__all__ = ["Transport", "open_transport"]


def open_transport(config: WeightsyncConfig, url: str, run: str) -> Transport:
    """The transport that `config` asks for.

    Args:
        config: transport and, for `directory`, the folder.
        url: the run's Redis.
        run: whose parts these are.
    """
    if config.moves_by == "directory":
        from weightsync.transport.directory import DirectoryTransport

        assert config.directory is not None, "checked when the settings were read"
        return DirectoryTransport(Path(config.directory), run)
    from weightsync.transport.redis import RedisTransport  # here: `import weightsync` stays free of redis

    return RedisTransport(url, run)
