"""Play a run in a few milliseconds per step: events of episodes, servers and a trainer, in order of time.

  admission -> slots -> a server at the version -> its tokens -> environment -> ... -> group ready
  ready groups -> lease (wait or drop) -> step -> version -> published -> staged -> activated by each server
                                               +-> advance: the next groups may start

Seconds come from a profile, the order of things from here, and what may start or be trained from the buffer's own
rules. Left out: bytes of the buffer, failures, evaluations, partial rollouts, and the cost of refilling a cache.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from asyncrl.tuning.draws import Draws, EpisodeDraw
from asyncrl.tuning.ledger import Ledger, SimGroup
from asyncrl.tuning.prediction import Prediction, Recorder
from asyncrl.tuning.profile import Profile, Setting
from asyncrl.tuning.servers import Server, fleet


def simulate(profile: Profile, setting: Setting, *, steps: int, seed: int = 0) -> Prediction:
    """What a run would do.

    Args:
        profile: speeds and answers.
        setting: what is tried; `profile.setting` is not looked at.
        steps: training steps. The first ones fill the pipeline and are not counted: `prediction.warm_up_steps`.
        seed: of prompts; the same for settings that are compared.
    Raises:
        ValueError: all steps would be warm-up.
    """
    return _Simulation(profile, setting, steps, seed).run()


@dataclass
class _Episode:
    group: SimGroup
    draw: EpisodeDraw
    turn: int = 0
    server: Server | None = None
    version: int = 0
    waits_since_s: float = 0.0


class _Simulation:
    def __init__(self, profile: Profile, setting: Setting, steps: int, seed: int) -> None:
        self._speeds, self._setting, self._steps = profile.speeds, setting, steps
        self._checkpoint_every = profile.workload.checkpoint_every
        self._prompt_tokens = profile.answers.prompt_tokens
        self._ledger = Ledger(setting, profile.workload)
        self._draws = Draws(profile.answers, profile.workload.group_size, seed)
        self._servers = fleet(profile.speeds, setting.servers)
        self._free_slots = setting.slots
        self._queue: deque[_Episode] = deque()
        self._without_server: list[_Episode] = []
        self._recorder = Recorder(setting, steps)
        self._now_s, self._step, self._head = 0.0, 0, 0
        self._published_at_s = 0.0
        self._may_lease = True
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def run(self) -> Prediction:
        self._admit()
        while self._recorder.num_steps < self._steps:
            assert self._events, "a simulated run stands still: nothing is under way and the batch is not whole"
            self._now_s, _, happens = heapq.heappop(self._events)
            happens()
        return self._recorder.prediction(sum(server.busy_s for server in self._servers) / len(self._servers))

    def _after(self, seconds: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now_s + seconds, next(self._order), happens))

    # Rollout: groups start while slots are free that nobody waits for, as in asyncrl.rollout.pacing.

    def _admit(self) -> None:
        while self._free_slots and not self._queue:
            ordinal = self._ledger.admits()
            if ordinal is None:
                self._recorder.admission(self._now_s, is_closed=True)
                return
            self._recorder.admission(self._now_s, is_closed=False)
            group = self._ledger.reserve(ordinal, self._draws.group(ordinal))
            for draw in group.episodes:
                episode = _Episode(group, draw)
                if self._free_slots:
                    self._free_slots -= 1
                    self._ask(episode)
                else:
                    self._queue.append(episode)
        self._recorder.admission(self._now_s, is_closed=False)

    def _ask(self, episode: _Episode) -> None:
        """Send its next turn to the server that it was at, or to the one with fewest requests."""
        start_from = episode.group.start_from
        usable = [one for one in self._servers if one.version >= start_from and not one.is_away]
        if not usable:
            self._without_server.append(episode)
            episode.waits_since_s = self._now_s
            return
        server = next((one for one in usable if one is episode.server), min(usable, key=lambda one: one.at_once))
        episode.server, episode.version = server, server.version
        server.take(self._now_s, episode.draw.turns[episode.turn][0], episode)
        self._watch(server)

    def _watch(self, server: Server) -> None:
        """Have an event at the end of its next request; what was known of it before is void."""
        server.token += 1
        token, end_s = server.token, server.next_end_s(self._now_s)
        if end_s is not None:
            self._after(end_s - self._now_s, lambda: self._answered(server) if server.token == token else None)

    def _answered(self, server: Server) -> None:
        episode = server.end_of_next(self._now_s)
        assert isinstance(episode, _Episode)
        self._watch(server)
        group = episode.group
        group.oldest = min(group.oldest, episode.version)
        group.told = group.oldest
        environment_s = episode.draw.turns[episode.turn][1]
        episode.turn += 1
        self._after(environment_s, lambda: self._turn_over(episode))

    def _turn_over(self, episode: _Episode) -> None:
        if episode.turn < len(episode.draw.turns):
            self._ask(episode)
            return
        if self._queue:
            self._ask(self._queue.popleft())
        else:
            self._free_slots += 1
        episode.group.num_playing -= 1
        if not episode.group.num_playing:
            self._ledger.put(episode.group)
            if self._may_lease:
                self._lease()
        self._admit()

    # Trainer: asyncrl.trainer.loop without what takes no time.

    def _lease(self) -> None:
        num_left = len(self._ledger.left)
        groups = self._ledger.lease(self._now_s)
        if len(self._ledger.left) > num_left:
            self._admit()
        if groups is None:
            self._recorder.waits(self._now_s)
            return
        self._may_lease = False
        left = self._ledger.left
        self._ledger.left = []
        self._recorder.leased(self._now_s, self._ledger.trained, groups, left)
        tokens = sum(sum(group.lengths) + self._prompt_tokens * len(group.episodes) for group in groups)
        seconds = self._speeds.step_s + self._speeds.trained_token_s * tokens / self._setting.ranks
        self._after(seconds, lambda: self._trained(tokens))

    def _trained(self, tokens: float) -> None:
        self._step += 1
        is_version = self._step % self._setting.steps_per_version == 0
        blocked_s = self._blocked_s() if is_version else 0.0
        if is_version:
            self._after(blocked_s, self._advance)
        pause_s = self._speeds.checkpoint_s if self._step % self._checkpoint_every == 0 else 0.0
        self._after(blocked_s, lambda: self._recorder.stepped(self._now_s, tokens))
        self._after(blocked_s + pause_s, self._goes_on)

    def _goes_on(self) -> None:
        self._may_lease = True
        self._lease()

    def _blocked_s(self) -> float:
        """Seconds for which the loop waits: with limit 0 the whole publish, else the copy and the version before."""
        if self._setting.limit == 0:
            return self._speeds.blocked_s + self._speeds.publish_s
        return self._speeds.blocked_s + max(0.0, self._published_at_s - self._now_s)

    def _advance(self) -> None:
        version = self._ledger.trained + 1
        self._ledger.advance(version)
        publish_s = 0.0 if self._setting.limit == 0 else self._speeds.publish_s
        self._published_at_s = self._now_s + publish_s
        self._after(publish_s, lambda: self._published(version))
        self._admit()

    def _published(self, version: int) -> None:
        self._head = version
        for server in self._servers:
            if not server.is_away:
                self._after(self._speeds.stage_s, lambda server=server: self._activate(server))  # type: ignore[misc]

    def _activate(self, server: Server) -> None:
        if server.is_away or server.version >= self._head:
            return
        version = self._head
        server.stand_still(self._now_s)
        self._watch(server)
        self._after(self._speeds.pause_s, lambda: self._activated(server, version))

    def _activated(self, server: Server, version: int) -> None:
        server.go_on(self._now_s, version)
        self._watch(server)
        self._after(self._speeds.notice_s, lambda: self._is_back(server, version))

    def _is_back(self, server: Server, version: int) -> None:
        server.is_away = False
        if self._head > version:
            self._after(self._speeds.stage_s, lambda: self._activate(server))
        # After the others of this moment: who waits chooses among all servers that are back.
        self._after(0.0, self._ask_again)

    def _ask_again(self) -> None:
        episodes, self._without_server = self._without_server, []
        for episode in episodes:
            self._recorder.waited_for_server(self._now_s - episode.waits_since_s)
            self._ask(episode)
