"""Make what the `starter:` section describes when it is missing, and say so."""

from asyncrl.config import Config


def make_missing(config: Config) -> list[str]:
    """Make the starter's model and data if they are not there; returns the paths that were made.

    Both commands call it first, under the starter's own file lock: whichever comes first makes them, the other waits.
    """
    if config.starter is None or is_there(config):
        return []
    from asyncrl import starter  # torch: only when there is something to make

    return [str(path) for path in starter.make(config)]


def is_there(config: Config) -> bool:
    """Whether model and data files all exist; whether they are right is asked by whoever opens them."""
    files = (config.model.path / "config.json", *config.data.train_files, *config.data.val_files)
    return all(path.exists() for path in files)
