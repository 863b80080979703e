"""What must never be shown: values of secret fields, and passwords inside addresses."""

import re
from typing import Any, get_args

from pydantic import SecretStr
from pydantic.fields import FieldInfo

MASK = "**********"
CREDENTIALS = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+@")


def is_secret(field: FieldInfo) -> bool:
    """Whether the field's value must not be shown: a SecretStr, or a field that its class keeps out of its repr."""
    return field.repr is False or SecretStr in (field.annotation, *get_args(field.annotation))


def masked(secret: str) -> str:
    """A secret as it may be shown. Of an address, scheme and host remain, so that a wrong one can be recognised."""
    scheme, separator, rest = secret.partition("://")
    if not separator:
        return MASK
    credentials, at, host = rest.rpartition("@")
    # A ?, a second @ or a / before the @ may belong to an unescaped password, or to a query that holds one.
    if "?" in rest or "@" in credentials or "/" in credentials:
        return f"{scheme}://{MASK}"
    return f"{scheme}://{MASK if at else ''}{at}{host}"


def redact(value: Any) -> Any:  # Any: JSON has no narrower name
    """A value that is no secret, with the passwords of addresses in it masked."""
    if isinstance(value, str):
        return CREDENTIALS.sub(rf"\1:{MASK}@", value)
    if isinstance(value, list):
        return [redact(item) for item in value]
    if isinstance(value, dict):
        return {key: redact(item) for key, item in value.items()}
    return value
