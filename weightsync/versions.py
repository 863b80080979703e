"""Packed versions: `branch << 32 | number`, and the label that people read."""

_NUMBER_BITS = 32
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1

ORIGIN = 0
"""Version 0.0: the model directory that trainer and servers start from."""


def pack(branch: int, number: int) -> int:
    """One integer for a version.

    Raises:
        ValueError: branch or number does not fit into 32 unsigned bits.
    """
    for name, value in (("branch", branch), ("number", number)):
        if not 0 <= value <= _NUMBER_MASK:
            raise ValueError(f"{name} = {value} of a version must be in 0..{_NUMBER_MASK}: it is stored in 32 bits.")
    return branch << _NUMBER_BITS | number


def unpack(version: int) -> tuple[int, int]:
    """The (branch, number) of a packed version.

    Raises:
        ValueError: `version` does not fit into 64 unsigned bits.
    """
    if not 0 <= version < 1 << 64:
        raise ValueError(f"version = {version} is not a packed version: it must be in 0..2**64-1.")
    return version >> _NUMBER_BITS, version & _NUMBER_MASK


def label(version: int | None) -> str:
    """The name people read: "branch.number"; "none" where no version is known."""
    if version is None:
        return "none"
    branch, number = unpack(version)
    return f"{branch}.{number}"
