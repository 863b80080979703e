"""Beside a server that adds an adapter to its own model: a receiver whose version 0.0 is the adapter's zeros."""

from pathlib import Path

from weightsync.adapter_origin import origin_of
from weightsync.digest import digest_of_model_dir
from weightsync.errors import LayoutMismatch
from weightsync.log.records import VersionRecord
from weightsync.manifest import Manifest
from weightsync.receiver import Receiver
from weightsync.versions import ORIGIN

ORIGIN_DIR = "adapter-origin"


class AdapterReceiver(Receiver):
    """As Receiver; `model_dir` is what the engine loads when it starts and what the adapter is added to."""

    _adds_adapters = True
    _base: Path | None = None

    def origin_digest(self) -> int:
        """Digest of the zeros and of the model's own; reads the model once.

        Raises:
            ModelDirError, LayoutMismatch: the directory is not the model of the log.
        """
        self._manifest(self._first_record())
        return super().origin_digest()

    def _manifest(self, record: VersionRecord) -> Manifest:
        manifest = self._reader.manifest(record.layout)
        if self._base is None:
            base, directory = self._model_dir, self._stage_dir / ORIGIN_DIR
            found = digest_of_model_dir(origin_of(manifest, base, directory), manifest)
            expected = self._log.digest_of(ORIGIN)
            if expected is not None and found != expected:
                raise LayoutMismatch(
                    f"server {self._server}: {base} holds other weights than the model that the trainer's adapter is "
                    f"of (origin {found:016x}, the log has {expected:016x}). Added to them it would be another policy; "
                    "copy the trainer's model.path here."
                )
            self._base, self._model_dir = base, directory
        return super()._manifest(record)
