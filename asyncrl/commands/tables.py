"""Facts as plain text tables, for people; a script reads --json instead."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 120


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """One fact a line: its name, and what it is."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(harmless(value)))
    return _printed(table)


def columns(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a head; the last column takes the room that is left."""
    table = Table(box=None, pad_edge=False, header_style="")
    for name in names[:-1]:
        table.add_column(Text(name), no_wrap=True)
    table.add_column(Text(names[-1]), overflow="fold")
    for row in rows:
        table.add_row(*(Text(harmless(cell)) for cell in row))
    return _printed(table)


def listed(counts: Mapping[str, int]) -> str:
    """Counts in one line."""
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def num_bytes(count: int) -> str:
    """Bytes in the unit that fits."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def span_of_time(seconds: float) -> str:
    """Seconds in the unit that fits."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def one_line(text: str, most: int = 200) -> str:
    """The beginning of a text without line breaks."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[: most - 3] + "..."


def harmless(text: str) -> str:
    """The text without what a terminal would obey: errors, names of workers and sampled text come from elsewhere."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text)


def _printed(table: Table) -> str:
    console = Console(width=WIDTH, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
