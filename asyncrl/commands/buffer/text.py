"""The text of a run's tokens, where its tokenizer is reachable."""

from typing import TYPE_CHECKING

from asyncrl.config import Config
from buffer import ReplayBuffer

if TYPE_CHECKING:  # tokenizers and jinja take a while to import
    from asyncrl.data.texts import Texts


def texts_of(config: Config, buffer: ReplayBuffer) -> "Texts":
    """What makes text of tokens, if model.path has the tokenizer that the run was started with."""
    from asyncrl.data.texts import Texts

    record = buffer.record()
    return Texts.of_run(config.model.path, "" if record is None else record.tokenizer)
