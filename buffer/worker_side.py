"""The rollout worker's side of the replay buffer: reserve -> renew, park ... -> put | fail | abandon."""

import secrets
from collections.abc import Sequence

from buffer import staleness, wire
from buffer.answers import Claim, NotAdmitted, Parked, RenewAnswer
from buffer.attached import Attached
from buffer.books import Index, Spent
from buffer.draws import NO_RESULT, Draw, PassRate, Result, check_offered
from buffer.errors import Fenced, ServerFull, TooLarge, TrajectoryError
from buffer.keys import parked_key, payload_key
from buffer.partials import Partials, partials_of
from buffer.store import Granted, Refused
from buffer.trajectory import Group
from buffer.versions import unpack

_MAX_ERROR_CHARS = 2000


class WorkerSide(Attached):
    """See `buffer.replay_buffer.ReplayBuffer`."""

    def reserve(self, worker: str, offered: Sequence[Draw] = ()) -> Claim | NotAdmitted:
        """The next ordinal to play, if admission allows one.

        Args:
            worker: name of the caller, for people.
            offered: draws for it, by position, where its prompt depends on results. An ordinal that has its draw, from
                an earlier attempt, keeps it. Empty: the ordinal alone says its prompt.
        Raises:
            BufferError: too many draws, or not in order.
            ServerLost: the server did not answer for buffer.retry_s.
        """
        # Drawn here, before the call: a repeat after a lost reply finds its claim, and no token ever comes back.
        token = secrets.token_hex(16)
        check_offered(offered)
        try:
            answer = self._store.reserve(token, worker, self._limits, offered)
        except ServerFull as error:
            return NotAdmitted("bytes", str(error), "0-0")
        if isinstance(answer, Refused):
            return NotAdmitted(answer.reason, self._explain(answer), answer.last_hint, answer.next_position)
        return Claim(
            ordinal=answer.ordinal,
            attempt=answer.attempt,
            token=token,
            start_from=staleness.start_from(
                answer.trained, answer.ahead, answer.taken, answer.per_version, answer.limit
            ),
            branch=answer.branch,
            trained=answer.trained,
            limit=answer.limit,
            groups_per_version=answer.per_version,
            commons=answer.commons,
            parked=_parked(answer),
            draw=answer.draw,
        )

    def pass_rates(self, prompts: Sequence[int]) -> tuple[PassRate | None, ...]:
        """The newest result of each of these prompts; None: it has none yet."""
        return self._store.pass_rates(prompts) if prompts else ()

    def renew(self, claim: Claim, oldest_version: int | None = None, num_sampled: int = 0) -> RenewAnswer:
        """Move the claim's deadline one `claim_s` ahead of now, also when it is late but not yet swept.

        Args:
            oldest_version: packed; the oldest version that sampled a token of the group so far. Under `wait` the
                trainer waits for groups that it may train on now but not one version later; a group without tokens
                holds nobody.
            num_sampled: tokens of the group so far: what is wasted if this worker is lost.
        Raises:
            Fenced: the claim was swept, and maybe given to somebody else.
        """
        oldest = None if oldest_version is None else unpack(oldest_version)
        answer = self._store.renew(claim.ordinal, claim.token, oldest, num_sampled, self._limits)
        if answer.state == "fenced":
            raise Fenced(self._lost(claim, "renew"))
        if answer.state == "done":
            return RenewAnswer(False, "done")
        if answer.stopped:
            return RenewAnswer(False, "stopped")
        drops = self._staleness.policy == "drop" and self._staleness.on_stale != "mask"
        if self._staleness.cancel_doomed and drops and answer.effective is not None:
            # In order of ordinals all that is ahead is consumed before; otherwise the next batch may take the group.
            ahead = answer.ahead if self._staleness.order == "ordinal" else 0
            earliest = staleness.due(answer.trained, ahead, answer.taken, claim.groups_per_version)
            if staleness.doomed(answer.effective, earliest, claim.limit):
                return RenewAnswer(False, "doomed")
        return RenewAnswer(True)

    def put(self, claim: Claim, group: Group, *, filtered: str | None = None, pass_reward: float | None = None) -> str:
        """Hand the whole group in.

        Args:
            filtered: a reason: the group has no learning signal and is counted instead of trained. No payload is
            written.
            pass_reward: smallest reward that passes: of a prompt that was drawn, how many passed is kept for later
            draws. None: nothing is kept.
        Returns:
            "ready"; "filtered"; "stale" (past the limit on arrival: resubmitted or discarded); "dead" (larger than
            buffer.max_group_bytes).
        Raises:
            Fenced: the claim was lost; its payload is removed.
            TrajectoryError: the group is not of this claim.
            ServerFull: the server had no memory for it during buffer.retry_s.
        """
        if group.gid != claim.gid:
            raise TrajectoryError(
                f"group {group.gid} was put under the claim of {claim.gid}: it would count for another prompt."
            )
        if filtered is not None:
            result = _result(claim, group, pass_reward)
            status, trash = self._store.filter(claim.ordinal, claim.token, filtered, _spent(group), result)
            self._delete(trash)
        else:
            status = self._put_payload(claim, group, _result(claim, group, pass_reward))
        if status == "fenced":
            raise Fenced(self._lost(claim, "put"))
        return "ready" if status == "done" else status

    def park(self, claim: Claim, partials: Partials, data_source: str = "") -> bool:
        """Keep unfinished episodes for the ordinal's next owner, in place of what was parked before. The claim goes on.

        Returns:
            False: they are larger than buffer.max_group_bytes and were not kept.
        Raises:
            Fenced: the claim was lost, or its group is already in.
        """
        group = partials.to_group(claim.ordinal, claim.attempt, data_source)
        encoded = self._encoded(group)
        if isinstance(encoded, str):
            return False
        raw, blob = encoded
        key = parked_key(self.run, claim.gid, claim.token, spilled=self._payloads.spills(len(blob)))
        self._payloads.put(key, blob)
        status, trash = self._store.park(claim.ordinal, claim.token, key, _index(group, raw, blob))
        self._delete(trash)
        if status == "fenced":
            raise Fenced(self._lost(claim, "park"))
        return True

    def fetch_partials(self, claim: Claim) -> Partials | None:
        """What the ordinal's last owner parked; None: nothing.

        Raises:
            CorruptPayload: it is missing or damaged: start from the prompt.
            UnknownSchema: it was written by another major version.
        """
        if claim.parked is None:
            return None
        parked = claim.parked
        return partials_of(self._read(parked.key, parked.num_bytes, parked.xxh3, f"parked for {claim.ordinal}"))

    def fail(
        self, claim: Claim, reason: str, error: str = "", *, sampled: Sequence[int] = (), data_source: str = ""
    ) -> str:
        """Give the ordinal up at the cost of a failure, and what was parked for it, which may be the cause.

        Args:
            sampled: tokens of each trajectory so far, the parked ones included.
        Returns:
            "waiting", or "dead" at the last failure.
        Raises:
            Fenced: the claim was lost.
        """
        spent = Spent.of(data_source, sampled)
        status = self._release(claim, reason, error, "failed", spent)
        if status == "fenced":
            raise Fenced(self._lost(claim, "fail"))
        return status

    def abandon(self, claim: Claim, *, sampled: Sequence[int] = (), data_source: str = "") -> None:
        """Give the ordinal up at no cost. That the claim was lost already is what the caller wanted.

        Args:
            sampled: tokens of each trajectory that are lost by this; what is parked goes to the next owner.
        """
        self._release(claim, "abandoned", "", "abandoned", Spent.of(data_source, sampled))

    def _release(self, claim: Claim, reason: str, error: str, kind: str, spent: Spent) -> str:
        status, trash = self._store.release(
            claim.ordinal, claim.token, reason, error[:_MAX_ERROR_CHARS], kind, spent, self._limits
        )
        self._delete(trash)
        return status

    def _put_payload(self, claim: Claim, group: Group, result: Result) -> str:
        encoded = self._encoded(group)
        if isinstance(encoded, str):
            return self._release(claim, "too_large", encoded, "fatal", _spent(group))
        raw, blob = encoded
        spilled = self._payloads.spills(len(blob))
        key = payload_key(self.run, claim.gid, claim.token, spilled=spilled)
        # The payload first, or with it: what is ready is there.
        carried = blob if self._store.writes_payloads and not spilled else None
        if carried is None:
            self._payloads.put(key, blob)
        index = _index(group, raw, blob)
        status, trash = self._store.put(claim.ordinal, claim.token, key, index, self._limits, carried, result)
        self._delete(trash)
        return status

    def _encoded(self, group: Group) -> tuple[bytes, bytes] | str:
        """The bytes and their stored form, or why they are too many."""
        limit, threshold = self._config.max_group_bytes, self._config.payload.compress_bytes
        try:
            raw = wire.encode(group)
        except TooLarge as error:
            return str(error)
        if len(raw) > limit:
            return f"{len(raw)} bytes, buffer.max_group_bytes is {limit}"
        return raw, raw if threshold is None or len(raw) < threshold else wire.deflate(raw)

    def _explain(self, refused: Refused) -> str:
        if refused.reason == "window":
            return (
                f"{refused.ahead} groups open and {refused.taken} taken of a window of {refused.window}; waits for "
                "the trainer."
            )
        if refused.reason == "bytes":
            return (
                f"{refused.num_bytes} of buffer.max_bytes = {self._config.max_bytes} are in use or promised, a group "
                "may need "
                f"{self._config.max_group_bytes}; a checkpoint of the trainer frees what it has trained."
            )
        details = {
            "paused": "the run is paused; resume it to go on.",
            "stopped": "the run is stopping.",
            "draw": f"others have drawn up to position {refused.next_position}; it offers again.",
            "no_trainer": "no trainer has opened a branch yet; is `asyncrl train` running?",
        }
        return details[refused.reason]

    def _lost(self, claim: Claim, what: str) -> str:
        return (
            f"{what} of group {claim.gid}: its claim is gone, because it was not renewed for buffer.claim_s = "
            f"{self._config.claim_s} s or its run was recovered. Drop the group; its ordinal is played by somebody "
            "else."
        )


def _result(claim: Claim, group: Group, pass_reward: float | None) -> Result:
    rewards = [t.reward for t in group.trajectories if t.reward is not None]
    if claim.draw is None or pass_reward is None or not rewards:
        return NO_RESULT
    return Result(claim.draw.prompt, sum(reward >= pass_reward for reward in rewards), len(rewards))


def _spent(group: Group) -> Spent:
    return Spent.of(group.data_source, [t.num_sampled for t in group.trajectories])


def _index(group: Group, raw: bytes, blob: bytes) -> Index:
    ranges = group.number_ranges()
    return Index(
        num_bytes=len(blob),
        xxh3=wire.xxh3(raw),
        ranges=tuple((branch, *ranges[branch]) for branch in sorted(ranges)),
        tokens=tuple([t.num_tokens for t in group.trajectories]),
        sampled=tuple([t.num_sampled for t in group.trajectories]),
        rewards=tuple(t.reward for t in group.trajectories),
        data_source=group.data_source,
    )


def _parked(answer: Granted) -> Parked | None:
    if not answer.parked_key:
        return None
    return Parked(answer.parked_key, answer.parked.num_bytes, answer.parked.xxh3, answer.parked.sampled)
