"""Where the bytes of groups live: Redis or memory for the small ones, a directory or object store for the large
ones."""

from collections.abc import Iterable, Mapping

from buffer.config import PayloadConfig
from buffer.payloads.directory import DirectoryPayloads
from buffer.payloads.home import Blob, PayloadHome

__all__ = ["Blob", "PayloadHome", "Payloads"]


class Payloads:
    """Both homes of a run. The key says which one holds it."""

    def __init__(self, near: PayloadHome, config: PayloadConfig) -> None:
        self._near = near
        self._far: PayloadHome | None = None if config.home == "redis" else DirectoryPayloads(config.home)
        self._spill_bytes = config.spill_bytes

    def spills(self, num_bytes: int) -> bool:
        """Whether a payload of this size goes to the far home."""
        return self._far is not None and num_bytes > self._spill_bytes

    def put(self, key: str, blob: bytes) -> None:
        self._home(key).put(key, blob)

    def get(self, key: str, num_bytes: int | None = None) -> Blob | None:
        """The bytes under `key`; None if there are none.

        Args:
            num_bytes: what the index says. Of a longer one no more than a byte beyond need be read.
        """
        return self._home(key).get(key, num_bytes)

    def get_each(self, sizes: Mapping[str, int]) -> dict[str, Blob | None]:
        """The same of many, asked for together where the home can; the caller bounds how many.

        Args:
            sizes: key -> what the index says.
        """
        found: dict[str, Blob | None] = {}
        for home in (self._near, self._far):
            mine = {key: size for key, size in sizes.items() if home is not None and self._home(key) is home}
            if home is not None and mine:
                found.update(home.get_each(mine))
        return found

    def delete(self, keys: Iterable[str]) -> None:
        """Those of `keys` that exist are gone afterwards."""
        keys = list(keys)
        for home in (self._near, self._far):
            mine = [key for key in keys if home is not None and self._home(key) is home]
            if home is not None and mine:
                home.delete(mine)

    def strays(self, run: str, idle_s: float) -> list[str]:
        """A page of old keys from each home."""
        return [key for home in (self._near, self._far) if home is not None for key in home.strays(run, idle_s)]

    def _home(self, key: str) -> PayloadHome:
        if not key.startswith("spilled:"):
            return self._near
        if self._far is None:
            raise ValueError(
                f"the payload {key} was written to another home, but buffer.payload.home is 'redis' here. Both "
                "clusters "
                "need the same buffer.payload.home."
            )
        return self._far
