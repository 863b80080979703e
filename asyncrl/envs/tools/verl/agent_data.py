"""What verl gives a tool with each call besides its arguments, as far as a tool can depend on it here."""

from collections.abc import Mapping

from asyncrl.data.values import Json


class AgentData:
    """The `agent_data` of one episode, shared by its tools.

    Attributes:
        request_id: of the episode.
        tools_kwargs: tool name -> {"create_kwargs": ...}, from the prompt's row.
        extra_fields: free for tools to keep things in; gone with the episode.
        metrics: free for tools; read by nobody.
    """

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.tools_kwargs: dict[str, dict[str, Mapping[str, Json]]] = {}
        self.extra_fields: dict[str, object] = {}
        self.metrics: dict[str, object] = {}

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"agent_data has no {name} here; there are request_id, tools_kwargs, extra_fields and metrics. What a tool "
            "needs of the prompt comes with the row's tools_kwargs"
        )


class AgentDataTable:
    """The episodes that go on. An entry lives from the first create of an episode's tools to their last release."""

    def __init__(self) -> None:
        self._entries: dict[str, AgentData] = {}
        self._users: dict[str, int] = {}

    def enter(self, instance_id: str, tool: str, create_kwargs: Mapping[str, Json]) -> None:
        """A tool's instance is made."""
        episode = _episode(instance_id)
        entry = self._entries.setdefault(episode, AgentData(episode))
        entry.tools_kwargs[tool] = {"create_kwargs": create_kwargs}
        self._users[episode] = self._users.get(episode, 0) + 1

    def of(self, instance_id: str) -> AgentData:
        """That of the instance's episode."""
        return self._entries[_episode(instance_id)]

    def leave(self, instance_id: str) -> None:
        """A tool's instance is gone."""
        episode = _episode(instance_id)
        self._users[episode] -= 1
        if self._users[episode] == 0:
            del self._users[episode], self._entries[episode]


def _episode(instance_id: str) -> str:
    """What the instances of an episode have in common: see Tool.create."""
    return instance_id.partition(".")[0]
