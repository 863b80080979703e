"""Whether a model's attention can be cut into trainer.parallel.tp slices, read before any rank starts."""

import json
from pathlib import Path

from asyncrl.errors import ConfigError

HEADS = ("num_attention_heads", "num_key_value_heads")


def require_divisible_heads(path: Path, tp: int) -> None:
    """Look at the config.json of a model directory; one that cannot be read is left to whoever reads the model.

    Raises:
        ConfigError: a number of heads is no multiple of `tp`.
    """
    file = path / "config.json"
    if tp == 1 or not file.is_file():
        return
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings = settings.get("text_config", settings)
    for name in HEADS:
        heads = settings.get(name)
        if isinstance(heads, int) and heads % tp:
            raise ConfigError(
                f"{file}: {name} = {heads} is no multiple of trainer.parallel.tp = {tp}: a rank would hold part of a "
                "head. Set trainer.parallel.tp to a divisor of it, and split further with trainer.parallel.fsdp."
            )
