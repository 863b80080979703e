"""The last box of a worked solution: what \\boxed{...} or \\fbox{...} holds."""

_BOXES = ("\\boxed", "\\fbox")


def has_box(text: str) -> bool:
    """Whether a box begins anywhere in the text."""
    return any(box in text for box in _BOXES)


def last_box(text: str) -> str | None:
    """The content of the last box, or None if there is none or it is not closed."""
    start, box = max((text.rfind(box), box) for box in _BOXES)
    if start < 0:
        return None
    rest = text[start + len(box) :].lstrip()
    if not rest.startswith("{"):
        return rest.split(maxsplit=1)[0] if rest else None  # \boxed 7
    depth = 0
    for i, char in enumerate(rest):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return rest[1:i]
    return None
