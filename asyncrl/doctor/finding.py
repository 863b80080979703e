"""What a check found, and how findings are shown."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from asyncrl.errors import PreflightError


@dataclass(frozen=True)
class Finding:
    """One checked thing. `fix` says what to do if it is not ok; with ok, it is advice."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


def render(findings: Sequence[Finding]) -> str:
    """The findings for people, with a verdict at the end."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for no_wrap in (True, True, False):
        table.add_column(no_wrap=no_wrap)
    for finding in findings:
        state = ("note" if finding.fix else "ok") if finding.ok else "FAIL"
        table.add_row(Text(state), Text(finding.name), Text(finding.detail))
        if finding.fix:
            table.add_row("", "", Text(f"-> {finding.fix}"))
    console = Console(width=110, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    failed = sum(not finding.ok for finding in findings)
    verdict = "Everything a run needs is there." if failed == 0 else f"{failed} of {len(findings)} checks failed."
    return "\n".join([*(line.rstrip() for line in captured.get().splitlines()), verdict])


def exit_code(findings: Sequence[Finding]) -> int:
    """0, or that of a preflight error."""
    return 0 if all(finding.ok for finding in findings) else PreflightError.exit_code
