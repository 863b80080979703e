"""Transports of parts. `open_transport` picks one by the settings."""

from pathlib import Path

from weightsync.config import WeightsyncConfig
from weightsync.transport.base import Transport

__all__ = ["Transport", "open_transport"]


def open_transport(config: WeightsyncConfig, url: str, run: str) -> Transport:
    """The transport that `config` asks for.

    Args:
        config: transport and, for `directory`, the folder or the store's URL.
        url: the run's Redis; for `tcp` whatever `open_log` takes, since the log says where parts are.
        run: whose parts these are.
    Raises:
        TransportError: the store cannot be opened; names the package that is missing.
    """
    if config.moves_by == "directory":
        assert config.directory is not None, "checked when the settings were read"
        protocol, is_url, path = config.directory.partition("://")
        if is_url and protocol not in ("file", "local"):
            from weightsync.transport.object_store import ObjectStoreTransport  # here: fsspec need not be installed

            return ObjectStoreTransport(config.directory, run)
        from weightsync.transport.directory import DirectoryTransport

        return DirectoryTransport(Path(path if is_url else config.directory), run)
    if config.moves_by == "tcp":
        from weightsync.log import open_log
        from weightsync.transport.tcp import TcpTransport

        return TcpTransport(config, open_log(url, run))
    from weightsync.transport.redis import RedisTransport  # here: `import weightsync` stays free of redis

    return RedisTransport(url, run)
