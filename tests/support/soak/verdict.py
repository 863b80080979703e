"""The judgement on a drained soak: every ordinal ended once, the lineage trained none twice, nothing is left behind."""

import time
from collections import Counter
from functools import cached_property
from typing import Any

from buffer import CorruptPayload, Ledger, ReplayBuffer
from buffer.audit import Audit
from buffer.keys import ledger_key
from tests.support.soak import checkpoints, content
from tests.support.soak.cluster import Cluster
from tests.support.soak.settings import RUN, Settings, prompt

OPEN = ("in_flight", "waiting", "ready", "leased")
REASONS = {
    "too_large": "its group is too large",
    "reward_failed": "its rewards failed too often",
    "worker_lost": "its workers died too often",
    "corrupt_payload": "its payload was damaged too often",
    "trainer_poison": "its trainers died of it",
    "forgotten": "only a checkpoint knew of it",
}
"""What an ordinal may die of here."""
_UNSEEN = 2
CLEAN_S = 20.0
"""Seconds in which sweeps must have removed every payload that nobody names (idle for two claim_s first)."""


class Verdict:
    """Made after the drain, while the server is up and nobody else uses it."""

    def __init__(self, settings: Settings, cluster: Cluster, buffer: ReplayBuffer) -> None:
        self._settings, self._cluster, self._buffer = settings, cluster, buffer
        self._letters = buffer.dead_letters()
        tip = checkpoints.newest(settings.checkpoints)
        self._ledger = Ledger() if tip is None else tip.ledger
        self._chain = [] if tip is None else checkpoints.lineage(settings.checkpoints, tip)
        self._wrong = [*self._dead(), *self._left_payloads()]
        self._audit = buffer.audit(payloads=True)

    def violations(self) -> list[str]:
        """Everything that must not be."""
        return [*self._wrong, *self._books(self._audit), *self._ends(), *self._guards()]

    def figures(self) -> dict[str, Any]:
        """What happened, in numbers."""
        journal, identity = self._cluster.journal, self._audit.identity
        trainings = sum(len(event["ordinals"]) for event in journal.events() if event["what"] == "trained")
        return {
            "ordinals": identity["next_ordinal"],
            **{state: identity[state] for state in ("consumed", "filtered", "discarded", "dead")},
            "dead_by_reason": dict(Counter(letter.reason for letter in self._letters)),
            "trained_on_dead_branches": trainings - len(self.trained),
            "put_ready": journal.counts["put_ready"],
            "branches": self._audit.branch,
            "checkpoints": journal.counts["committed"],
            "lineage_checkpoints": len(self._chain),
            "lost_bytes_of_log": self._cluster.lost_bytes,
            "exits": dict(sorted(self._cluster.exits.items())),
            "events": {what: n for what, n in sorted(journal.counts.items()) if not what.startswith("fault_")},
            "by_reason": dict(self._audit.by_reason),
            "wasted_share": round(self._audit.tokens.wasted_share, 3),
            "wasted_by_reason": {r: round(share, 4) for r, share in self._audit.tokens.wasted_by_reason().items()},
            "payload_keys_left": self._num_payloads(),
        }

    @cached_property
    def trained(self) -> list[int]:
        """What the surviving lineage has trained, in order."""
        return [o for checkpoint in self._chain for _, ordinals in checkpoint.trained for o in ordinals]

    def _books(self, audit: Audit) -> list[str]:
        identity = audit.identity
        wrong = [
            *audit.problems,
            *(f"{identity[state]} ordinals are still {state}" for state in OPEN if identity[state]),
        ]
        if identity["next_ordinal"] != sum(identity[s] for s in ("consumed", "filtered", "discarded", "dead")):
            wrong.append(f"the terminal states do not add up: {dict(identity)}")
        wrong += [f"token ledger: {problem}" for problem in audit.tokens.problems()]
        wrong += self._tokens(audit)
        client = self._cluster.server.client()
        for name in ("trash", "claims", "sampling"):
            if left := client.exists(ledger_key(RUN, name)):
                wrong.append(f"{left} key {name!r} of the ledger is not empty")
        client.close()
        return wrong

    def _tokens(self, audit: Audit) -> list[str]:
        """Trained and masked tokens are exactly those of the prompts that the surviving lineage has trained."""
        expected, found = Counter[str](), Counter[str]()
        for one in (prompt(self._settings, ordinal) for ordinal in self.trained):
            for length, reward in zip(one.lengths, one.rewards, strict=True):
                expected["trained" if reward is not None else "masked"] += length
        for (fate, _), spent in audit.tokens.fates.items():
            if fate in ("trained", "masked"):
                found[fate] += spent.tokens
        return [] if found == expected else [f"token ledger: {dict(found)}, the lineage has {dict(expected)}"]

    def _ends(self) -> list[str]:
        """Each ordinal in exactly one terminal state, as seen from the lineage, the letters and the prompts."""
        identity, wrong = self._audit.identity, []
        twice = [o for o, count in Counter(self.trained).items() if count > 1]
        if twice:
            wrong.append(f"the surviving lineage trained {sorted(twice)} twice")
        trained, dead = set(self.trained), {letter.ordinal for letter in self._letters}
        everything = set(range(identity["next_ordinal"]))
        if trained & dead or not trained | dead <= everything:
            wrong.append(
                f"trained and dead: {sorted(trained & dead)}; unknown: {sorted((trained | dead) - everything)}"
            )
        if len(trained) != identity["consumed"]:
            wrong.append(f"{identity['consumed']} are consumed, the surviving lineage has trained {len(trained)}")
        rest = everything - trained - dead
        if len(rest) != identity["filtered"] + identity["discarded"]:
            wrong.append(f"{len(rest)} are neither trained nor dead: {dict(identity)}")
        wrong += self._discarded([o for o in rest if prompt(self._settings, o).fate != "filter"])
        named = {o for o in trained if not self._ledger.names(o)}
        if named:
            wrong.append(f"the newest checkpoint does not name {sorted(named)}, which its lineage has trained")
        return wrong

    def _discarded(self, lost: list[int]) -> list[str]:
        """Neither trained nor dead nor filtered: they were stale as often as it takes."""
        settings, stales = self._settings.staleness, Counter[int]()
        for event in self._cluster.journal.events():
            stales[event.get("ordinal", -1)] += "stale_" in event["what"] or event["what"] == "put_stale"
        need = 1 if settings.on_stale == "discard" else settings.max_stale + 1
        # Who notes that a group was stale may be killed just before it does.
        unexplained = [o for o in lost if stales[o] + _UNSEEN < need]
        wrong = [f"{sorted(unexplained)} were lost, and not by being stale"] if unexplained else []
        if len(lost) > self._audit.identity["discarded"]:
            wrong.append(f"{sorted(lost)} were lost, {self._audit.identity['discarded']} were discarded")
        return wrong

    def _guards(self) -> list[str]:
        """Poison ends as such, once trainers have met it; nobody dies of what is not in the world of this soak."""
        wrong = [f"ordinal {o.ordinal} is dead of {o.reason!r}" for o in self._letters if o.reason not in REASONS]
        for letter in self._letters:
            fate = prompt(self._settings, letter.ordinal).fate
            if letter.reason == "too_large" and fate != "too_large":
                wrong.append(f"ordinal {letter.ordinal} is dead as too large, it is not")
        poison = [o for o in self.trained if prompt(self._settings, o).fate == "poison"]
        wrong += [f"ordinal {o} kills trainers and was trained" for o in poison]
        return wrong

    def _dead(self) -> list[str]:
        """The payloads of dead letters are what was put, unless they were damaged; then all are purged."""
        wrong = []
        for letter in self._letters:
            if letter.entry is None:
                continue
            try:
                group = self._buffer.fetch(letter.entry)
            except CorruptPayload as error:
                if letter.reason != "corrupt_payload" and not self._cluster.damaged & {letter.entry.key}:
                    wrong.append(f"the payload of dead letter {letter.ordinal} ({letter.reason}) is bad: {error}")
                continue
            wrong += content.problems(self._settings, prompt(self._settings, letter.ordinal), group)
        self._buffer.purge([letter.ordinal for letter in self._letters])
        return wrong

    def _left_payloads(self) -> list[str]:
        deadline = time.monotonic() + CLEAN_S
        hints = self._buffer.hints("nothing sends this")
        while (left := self._num_payloads()) and time.monotonic() < deadline:
            for _ in range(64):
                self._buffer.sweep()
            hints.wait(0.2)
        return [f"{left} payloads are left after {CLEAN_S} s of sweeps"] if left else []

    def _num_payloads(self) -> int:
        client = self._cluster.server.client()
        near = sum(1 for _ in client.scan_iter(match="*payload:*", count=1000))
        far = sum(path.is_file() for path in self._settings.spilled.rglob("*"))
        client.close()
        return near + far
