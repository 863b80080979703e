"""The program that runs code of the model, one piece after the other, in one set of variables.

consumes  pieces of code, from the socket whose descriptor is its argument: a length of 4 bytes, then UTF-8
produces  a line `ready`, then for each piece `ok` or `error`; what the code prints goes to its standard output

Standard library only: nothing else is sure to be there. It trusts nobody to be honest: whatever the code does here, the
worker reads short lines with a deadline and kills the process when in doubt.
"""

import ast
import code
import linecache
import socket
import sys
import traceback

NAME = "<python>"  # the file's name in tracebacks


class Cell(code.InteractiveInterpreter):
    """Runs code and shows the value of a last expression, as a notebook does."""

    def __init__(self) -> None:
        super().__init__({"__name__": "__main__", "__doc__": None})
        self.failed = False

    def run(self, source: str) -> bool:
        """Run a piece. Returns whether it ended without an error; errors are printed as Python does."""
        self.failed = False
        linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
        try:
            tree = ast.parse(source, NAME)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            steps = [compile(tree, NAME, "exec")]
            if isinstance(last, ast.Expr):
                steps.append(compile(ast.Interactive([last]), NAME, "single"))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            traceback.print_exc(limit=0)
            return False
        for step in steps:
            if not self.failed:
                self._step(step)
        return not self.failed

    def _step(self, step: object) -> None:
        try:
            self.runcode(step)  # type: ignore[arg-type]  # a code object; compile() says Any
        except SystemExit as leave:
            if leave.code not in (None, 0):
                print(f"SystemExit: {leave.code}", file=sys.stderr)
                self.failed = True

    def showtraceback(self) -> None:
        """As the base does, and remember it."""
        self.failed = True
        super().showtraceback()


def main(descriptor: int) -> None:
    """Serve until the worker closes the socket."""
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    cell = Cell()
    connection.sendall(b"ready\n")
    while (source := _receive(connection)) is not None:
        fine = cell.run(source)
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(b"ok\n" if fine else b"error\n")


def _receive(connection: socket.socket) -> str | None:
    head = connection.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return None
    body = connection.recv(int.from_bytes(head, "little"), socket.MSG_WAITALL)
    return body.decode("utf-8", "replace")


if __name__ == "__main__":
    main(int(sys.argv[1]))
