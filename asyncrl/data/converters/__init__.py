"""Converters by name, for `asyncrl data prepare`. A new one is a file beside this one and a line here."""

from collections.abc import Mapping
from types import MappingProxyType

from asyncrl.data.converters import gsm8k, harbor, math, reasoning_gym, verifiers
from asyncrl.data.converters.base import ConvertedRow, Converter, Settings, Unusable

__all__ = ["CONVERTERS", "ConvertedRow", "Converter", "Settings", "Unusable"]

CONVERTERS: Mapping[str, Converter] = MappingProxyType(
    {
        "gsm8k": gsm8k.CONVERTER,
        "math": math.CONVERTER,
        "reasoning-gym": reasoning_gym.CONVERTER,
        "verifiers": verifiers.CONVERTER,
        "harbor": harbor.CONVERTER,
    }
)
"""name -> converter."""
