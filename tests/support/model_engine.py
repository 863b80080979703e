"""An engine with the real loader and the host beside it, for replays of model traces."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests.support.fused_model import FusedModel, bits, engine_of, same_bits
from weightsync import sglang_loader
from weightsync.config import WeightsyncConfig
from weightsync.errors import ChainBroken
from weightsync.log import VersionLog
from weightsync.receiver import Receiver
from weightsync.transport import Transport
from weightsync.versions import label, pack


class EngineAndHost:
    """`host` is what the host believes that its engine holds."""

    def __init__(
        self, name: str, log: VersionLog, transport: Transport, config: WeightsyncConfig, root: Path, model_dir: Path
    ) -> None:
        self.name, self._log, self._transport, self._config = name, log, transport, config
        self._root, self._model_dir = root, model_dir
        self.num_lives = 0
        self.start()

    def start(self) -> None:
        """The server starts from its directory, with a host of its own."""
        self.model: FusedModel = engine_of(self._model_dir)
        self.host: int | None = 0
        self._has_staged = False
        self.replace_host()

    def replace_host(self) -> None:
        """Another host for the engine that runs; it has heard what the last one believed."""
        self.num_lives += 1
        self._stage_dir = self._root / f"{self.name}-{self.num_lives}"
        self.receiver = Receiver(
            *(self._log, self._transport, self._config),
            server=self.name,
            incarnation=str(self.num_lives),
            url=f"http://{self.name}",
            stage_dir=self._stage_dir,
            model_dir=self._model_dir,
        )

    def stage(self) -> str:
        """Bring near what leads from the host's belief to head."""
        try:
            ticket = self.receiver.stage(self.host)
        except ChainBroken:
            return "no path"
        self._has_staged = ticket is not None
        if ticket is None:
            return "nothing newer"
        return f"{ticket.kind} of {label(ticket.target)}"

    def activate(self, *, host_dies: bool = False) -> str:
        """The engine takes what is staged, or says why not."""
        if not self._has_staged:
            return "nothing is staged"
        self.receiver.withdraw()
        code, branch, number, *_ = self._load()
        self._has_staged = False
        if host_dies:
            self.replace_host()
        else:
            self.host = pack(branch, number) if code in (sglang_loader.APPLIED, sglang_loader.ALREADY) else None
        return "applied" if code == sglang_loader.APPLIED else sglang_loader.CODES[code]

    def ask_engine(self) -> tuple[int, int]:
        """(version, digest) that the engine says it holds, measured anew."""
        self.receiver.stage_inspect()
        _, branch, number, high, low, _ = self._load()
        self._has_staged = False
        self.host = pack(branch, number)
        return self.host, high << 32 | low

    def acknowledge(self) -> str:
        """What the engine says, whatever anybody believed."""
        version, digest = self.ask_engine()
        self.receiver.acknowledge(version, digest)
        return f"acknowledged {label(version)}"

    def holds(self, weights: Mapping[str, Tensor]) -> bool:
        """Is every parameter what the engine's own load of these weights gives?"""
        fresh = FusedModel(self.model.rank, self.model.world)
        fresh.load_weights(weights.items())
        return same_bits(bits(self.model), bits(fresh))

    def _load(self) -> list[int]:
        with patch.dict(os.environ, {sglang_loader.STAGE_DIR: str(self._stage_dir)}):
            sglang_loader.load(self.model, [("@weightsync", torch.empty(0, dtype=torch.uint8))])
        engine: Any = self.model  # torch types every attribute as a tensor or a module
        status: list[int] = engine.get_weights_by_name("@weightsync")
        return status
