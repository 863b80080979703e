"""The order in which files of tests are handed out."""

from collections import OrderedDict

from tests.support.scheduling import LongestFirst


class Node:
    """A process of tests, from outside."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent.append(indices)


def test_checks_and_whole_runs_come_first_two_at_once_and_of_a_level_the_file_with_most_tests() -> None:
    sizes = {
        "tests/unit/test_short.py": 1,
        "tests/unit/test_long.py": 2,
        "tests/integration/test_parts.py": 1,
        **{f"tests/e2e/test_{name}.py": 1 for name in "abc"},
        "tests/architecture/test_checks.py": 1,
    }
    made = LongestFirst.__new__(LongestFirst)
    units = {file: {f"{file}::test_{i}": False for i in range(count)} for file, count in sizes.items()}
    nodes = [Node() for _ in range(3)]
    made.workqueue = OrderedDict(units)
    made.assigned_work = {node: OrderedDict() for node in nodes}
    made.registered_collections = {node: [test for unit in units.values() for test in unit] for node in nodes}

    def handed_to(node: Node) -> str:
        made._assign_work_unit(node)
        return str(next(reversed(made.assigned_work[node])))

    assert [handed_to(node) for node in nodes] == [
        *("tests/architecture/test_checks.py", "tests/e2e/test_a.py", "tests/e2e/test_b.py")
    ]
    assert handed_to(nodes[0]) == "tests/integration/test_parts.py", "two whole runs are under way"
    made.assigned_work[nodes[1]]["tests/e2e/test_a.py"]["tests/e2e/test_a.py::test_0"] = True
    assert handed_to(nodes[1]) == "tests/e2e/test_c.py"
    assert [handed_to(node) for node in nodes[:2]] == ["tests/unit/test_long.py", "tests/unit/test_short.py"]
    assert nodes[0].sent[-1] == [1, 2], "the whole file"
