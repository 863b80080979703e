"""Operate the servers of a run that goes on: look at them, add some, let one run empty, have it replaced."""

ACTIONS = {
    "list": "each server with its state and why, version, requests, restarts and address",
    "add": "adopt a server that runs already; the serve-rollout of its machine brings it to head",
    "drain": "give a server no requests, let it answer those it has, and stop it",
    "remove": "as drain, at once; also of a server that is lost",
    "replace": "drain a server and start it again",
    "restore": "have a server back that was drained or removed",
}
"""Action -> what it does. Each is the file of its name beside this one."""
