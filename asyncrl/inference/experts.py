"""Which experts a server sent tokens to, as SGLang 0.5.23 says it: base64 of int32 [tokens, layers, experts a token].

Tokens are those that were read: prompt and answer but for the last sampled one. A server that was started with
--enable-return-routed-experts keeps this for each place of its cache, so that a cached prompt has it, too.
"""

import base64
import binascii
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.errors import PreflightError
from asyncrl.inference.errors import MalformedAnswer

Experts = npt.NDArray[np.signedinteger[Any]]
_PER_TOKEN = ("num_experts_per_tok", "moe_topk", "moe_top_k", "num_experts_per_token")
_COUNT = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True)
class ExpertCounts:
    """What of a model's settings gives a record its shape.

    Attributes:
        layers: of the model, with experts or without.
        per_token: experts that a layer sends a token to.
        experts: of a layer.
    """

    layers: int
    per_token: int
    experts: int

    @classmethod
    def of(cls, model_dir: Path) -> "ExpertCounts":
        """Read the config.json of a model directory.

        Raises:
            PreflightError: it is not of a model with experts.
        """
        path = model_dir / "config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings = settings.get("text_config", settings)
        per_token, experts = (
            next((settings[n] for n in names if n in settings), None) for names in (_PER_TOKEN, _COUNT)
        )
        if per_token is None or experts is None:
            raise PreflightError(
                f"inference.record_experts = true, but {path} names no experts ({', '.join(_COUNT)}): its servers have "
                "none to tell of. Set it to false, or train a model with experts."
            )
        return cls(int(settings["num_hidden_layers"]), int(per_token), int(experts))

    def decode(self, text: object, num_tokens: int) -> Experts:
        """[num_tokens, layers, per_token] of an answer's meta_info.routed_experts; int8 or int16.

        Raises:
            MalformedAnswer: it is missing, of another size, or names an expert that the model does not have.
        """
        if not isinstance(text, str):
            raise MalformedAnswer(
                "missing_field",
                "the answer has no routed_experts: start the server with --enable-return-routed-experts, or set "
                "inference.record_experts to false.",
            )
        try:
            found = np.frombuffer(base64.b64decode(text, validate=True), dtype="<i4")
        except (ValueError, binascii.Error) as error:
            raise MalformedAnswer("routed_experts", f"routed_experts is no base64 of int32: {error}.") from error
        if found.size != num_tokens * self.layers * self.per_token:
            raise MalformedAnswer(
                "routed_experts",
                f"routed_experts has {found.size} numbers; {num_tokens} tokens read in {self.layers} layers with "
                f"{self.per_token} experts each make {num_tokens * self.layers * self.per_token}.",
            )
        if found.size and not -1 <= found.min() <= found.max() < max(self.experts, 256):
            raise MalformedAnswer(
                "routed_experts", f"routed_experts goes from {found.min()} to {found.max()}, of {self.experts} experts."
            )
        # What a server writes where nothing was routed (a layer without experts) is no expert.
        known = np.where(found < self.experts, found, -1).reshape(num_tokens, self.layers, self.per_token)
        return known.astype(np.int8 if self.experts <= 128 else np.int16)
