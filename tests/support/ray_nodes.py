"""A Ray cluster of two nodes on this machine, in a process of its own: `python -m tests.support.ray_nodes`.

It prints one JSON line when the nodes are up, and one for each line that it reads: `replace` kills the second node at
once and then adds another, `behead` kills the first, the head. It ends, with its nodes, at the end of its input.
"""

import json
import os
import secrets
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

ENV = {
    # A node that was killed is found dead in two seconds instead of half a minute.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "500",
    # A command counts the head as lost after half of it, in place of half a minute.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
}

SECOND = {"num_cpus": 3, "num_gpus": 1}
"""The node that rank and server need: the first has a CPU, for a worker. Ray counts the GPU, whether there is one or
not, and gives its number out."""


class RayNodes:
    """The process, for a test. `env` is for commands that use the cluster: its token is not in the home directory."""

    def __init__(self) -> None:
        self.env = {**ENV, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ray_nodes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.env},
        )
        self.address: str = self._read()["address"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process of the Ray nodes has ended"
        return dict(json.loads(line))

    def replace(self) -> str:
        """Kill the second node and add another; the id of the one that died."""
        return self._told("replace")

    def behead(self) -> str:
        """Kill the head; its id."""
        return self._told("behead")

    def _told(self, word: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return str(self._read()["died"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def main() -> None:
    """Keep the nodes."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = nodes.add_node(**SECOND)
    print(json.dumps({"address": nodes.address}), flush=True)
    has_head = True
    for line in sys.stdin:
        if line == "replace\n":
            nodes.remove_node(second, allow_graceful=False)
            died, second = second.node_id, nodes.add_node(**SECOND)
        else:
            assert line == "behead\n", line
            nodes.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
            died, has_head = nodes.head_node.node_id, False
        print(json.dumps({"died": died}), flush=True)
    if has_head:
        nodes.shutdown()
        return
    second.kill_all_processes(check_alive=False, allow_graceful=False)
    sys.stdout.flush()
    os._exit(0)  # without a head Ray's own end waits for it


if __name__ == "__main__":
    main()
