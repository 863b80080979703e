"""The version log: which versions exist, who holds them. `open_log` picks the home."""

from pathlib import Path

from weightsync.log.base import Need, VersionLog, Watch, Wish

__all__ = ["Need", "VersionLog", "Watch", "Wish", "open_log"]


def open_log(url_or_dir: str, run: str) -> VersionLog:
    """The log of a run: in Redis for a URL (redis://, rediss://, unix://), else in that folder.

    Raises:
        LogLost: Redis does not answer.
    """
    if "://" in url_or_dir:
        from weightsync.log.redis import RedisLog  # here: `import weightsync` stays free of redis

        return RedisLog(url_or_dir, run)
    from weightsync.log.directory import DirectoryLog

    return DirectoryLog(Path(url_or_dir), run)
