"""Preflight: would a run with this configuration start on this machine? Each check gives findings, with the fix.

Nothing is left behind: the embedded Redis is tried in a temporary directory, ports are bound and let go. No finding
holds a password.
"""

from asyncrl.doctor.finding import Finding, exit_code, render
from asyncrl.doctor.preflight import check

__all__ = ["Finding", "check", "exit_code", "render"]
