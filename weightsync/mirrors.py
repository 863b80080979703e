"""Copies of the tensors that have no address in an engine: they cannot be read back out of it, so their words are kept
beside it, and a changed one goes through load_weights whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from weightsync.address_map import Loads
from weightsync.digest import digest, total
from weightsync.errors import CorruptDelta
from weightsync.layout import TensorSpec, Words
from weightsync.model_dir import ModelDir
from weightsync.planes import apply_planes
from weightsync.ticket import Staged


@dataclass
class MirrorChanges:
    """What a ticket makes of the mirrors: new words by tensor, the digest's gain, and how many words differ."""

    words: dict[str, Words] = field(default_factory=dict)
    gain: int = 0
    num_changed: int = 0


class Mirrors:
    """The copies of one engine rank."""

    def __init__(self, reasons: Mapping[str, str], specs: Mapping[str, TensorSpec], model_dir: Path) -> None:
        """
        Args:
            reasons: why each of these tensors has no address.
            model_dir: what the engine loaded.
        Raises:
            CorruptDelta: `model_dir` lacks one of them.
        """
        self._specs = specs
        self._words: dict[str, Words] = _stored(model_dir, reasons) if reasons else {}

    def digest(self) -> int:
        """Of all their words."""
        return total(digest(words, self._specs[name].offset) for name, words in self._words.items())

    def changes(self, staged: Sequence[Staged], *, anchor: bool) -> MirrorChanges:
        """What these buckets would make of them; of an anchor the gain is the new digest."""
        found = MirrorChanges()
        for bucket, planes, dense in staged:
            if all(segment.tensor not in self._words for segment in bucket.segments):
                continue
            words = np.zeros(bucket.num_words, f"<u{bucket.width}") if dense is None else dense
            if planes is not None:
                apply_planes(words, planes, None)
            at = 0
            for segment in bucket.segments:
                if segment.tensor in self._words:
                    copy = found.words.setdefault(segment.tensor, self._words[segment.tensor].copy())
                    piece, run = words[at : at + segment.words], slice(segment.start, segment.end)
                    copy[run] = piece if dense is not None else copy[run] + piece
                at += segment.words
        for name, words in found.words.items():
            offset, held = self._specs[name].offset, self._words[name]
            found.gain = total((found.gain, digest(words, offset) - (0 if anchor else digest(held, offset))))
            found.num_changed += int(np.count_nonzero(words != held))
        return found

    def write(self, model: Loads, changes: MirrorChanges) -> None:
        """Load what changed into the model, in one call: some loaders make one weight of several tensors."""
        if not changes.words:
            return
        with torch.no_grad():
            model.load_weights((name, self._tensor(name, words)) for name, words in changes.words.items())
        self._words.update(changes.words)

    def _tensor(self, name: str, words: Words) -> torch.Tensor:
        spec = self._specs[name]
        return torch.from_numpy(words).view(torch.uint8).view(getattr(torch, spec.dtype)).reshape(spec.shape)


def _stored(model_dir: Path, reasons: Mapping[str, str]) -> dict[str, Words]:
    directory = ModelDir(model_dir)
    for name, reason in reasons.items():
        if name not in directory.tensors:
            raise CorruptDelta(
                f"{name} has no address in the engine ({reason}) and is not in {model_dir}: the server runs another "
                "model than the trainer."
            )
    return {name: np.array(directory.words(name)) for name in reasons}
