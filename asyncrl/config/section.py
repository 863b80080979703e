"""The base of every section: frozen, strict, no unknown keys, and each field explained by the text below it."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the configuration tree that belongs to one component, which is given it and nothing else."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, validate_default=True
    )
