"""Operate the replay buffer of a run: look at it, close and open admission, drain it, save and replay its groups."""

ACTIONS = {
    "status": "groups by state, why admission is closed, bytes, claims, workers, deaths, tokens",
    "pause": "start no prompt any more; groups in flight go on",
    "resume": "start prompts again: undoes pause, drain and stop",
    "drain": "pause, and wait until no group is in flight",
    "export": "write the groups that are ready, leased or dead to a parquet file",
    "import": "play groups of such a file into the buffer of a run",
    "acl": "write an ACL file for the run's Redis: a user per role, with a password of its own",
    "dead-letters": "list, show, resubmit or purge the groups that died",
}
"""Action -> what it does. Each is the file or folder of its name beside this one."""
