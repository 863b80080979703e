"""Harbor tasks as episodes: the agent's commands run in a workspace, and the task's own tests give the reward."""
