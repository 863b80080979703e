"""The groups that died, since their failures were used up or their batch killed its trainer: look, resubmit, purge."""

ACTIONS = {
    "list": "every dead group with its reason, error and attempts, and whether its payload is still there",
    "show": "one dead group with its trajectories: rewards, versions, and text or token ids",
    "resubmit": "play dead prompts again, with all their attempts before them",
    "purge": "drop the payloads of dead groups; what is known of the deaths stays",
}
"""Action -> what it does. Each is the file of its name beside this one."""
