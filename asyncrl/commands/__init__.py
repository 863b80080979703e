"""One file per command: its arguments, one call, its exit code."""
