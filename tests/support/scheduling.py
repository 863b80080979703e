"""In which order pytest-xdist hands out files of tests: long ones first, and not too many whole runs at once."""

from typing import Any

from xdist.scheduler import LoadScopeScheduling

LEVELS = ("tests/architecture/test_checks.py", "tests/e2e/", "tests/integration/", "tests/contract/")
"""Beginnings of names, those that take longest first; short files come last, so that nobody waits for the last one."""

WHOLE_RUNS, MOST_AT_ONCE = "tests/e2e/", 2
"""Each is several processes that compute. Beside two of them one process of other tests fills what they leave."""


class LongestFirst(LoadScopeScheduling):
    """A file is for one process, so that what its tests share is made once."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(self._next(), last=False)
        super()._assign_work_unit(node)

    def _next(self) -> str:
        """The file to hand out: of the first level that has any, the one with most tests."""
        open_runs = sum(
            scope.startswith(WHOLE_RUNS) and not all(unit.values())
            for assigned in self.assigned_work.values()
            for scope, unit in assigned.items()
        )
        files = [
            scope for scope in self.workqueue if open_runs < MOST_AT_ONCE or not scope.startswith(WHOLE_RUNS)
        ] or list(self.workqueue)
        return min(files, key=lambda scope: (_level(scope), -len(self.workqueue[scope])))


def _level(scope: str) -> int:
    return next((number for number, begin in enumerate(LEVELS) if scope.startswith(begin)), len(LEVELS))
