"""Whether a model's attention can be cut into trainer.parallel.tp slices; readable before any rank starts."""

import json
from collections.abc import Mapping
from pathlib import Path

from asyncrl.errors import ConfigError

HEADS = ("num_attention_heads", "num_key_value_heads")


def require_whole_heads_of(path: Path, tp: int) -> None:
    """Look at the config.json of a model directory; a directory without one is left to whoever reads the model.

    Raises:
        ConfigError: a number of heads is no multiple of `tp`.
    """
    file = path / "config.json"
    if file.is_file():
        settings = json.loads(file.read_text(encoding="utf-8"))
        require_whole_heads(settings.get("text_config", settings), tp, where=str(file))


def require_whole_heads(settings: Mapping[str, object], tp: int, *, where: str) -> None:
    """Look at a model's settings, by their names in transformers.

    Args:
        where: what they are of, for the message.
    Raises:
        ConfigError: a number of heads is no multiple of `tp`.
    """
    for name in HEADS:
        heads = settings.get(name)
        if isinstance(heads, int) and heads % tp:
            raise ConfigError(
                f"{where}: {name} = {heads} is no multiple of trainer.parallel.tp = {tp}: a rank would hold a part of "
                "a head. Set trainer.parallel.tp to a divisor of it, and split further with trainer.parallel.fsdp."
            )
