"""Keep what a group has so far for its ordinal's next owner, and begin with what the last owner kept.

What is parked lies beside the claim, which goes on. A put or a failure removes it; an abandoned claim, or one that is
swept because its worker died, hands it to the next owner.
"""

import logging
from collections import Counter
from collections.abc import Sequence

from asyncrl import waits
from asyncrl.rollout.progress import Progress
from asyncrl.rollout.turns import EpisodeFailed
from buffer import CorruptPayload, ReplayBuffer, ServerFull, TrajectoryError, UnknownSchema
from buffer.answers import Claim
from buffer.partials import PartialEpisode, Partials

log = logging.getLogger(__name__)

_Mark = tuple[int, int, bool]  # of an episode: how often it started over, sampled tokens, whether it is finished


class Parking:
    """What is parked of one group. Its calls come one at a time.

    Args:
        members: the group's episodes, by index.
        counts: gets partials_parked (groups that were parked, each time), partials_resumed (groups that began with
            what was parked), partials_lost (groups whose parked episodes could not be read), and what finished
            siblings bring to tokens_resumed.
    """

    def __init__(
        self,
        ledger: ReplayBuffer,
        claim: Claim,
        data_source: str,
        members: Sequence[Progress],
        counts: Counter[str],
    ) -> None:
        self._ledger, self._claim, self._data_source = ledger, claim, data_source
        self._members, self._counts = members, counts
        self._kept: list[_Mark] = [(0, 0, False)] * len(members)
        self._is_too_large = False

    async def resume(self) -> None:
        """Take over what the last owner parked, if anything; what cannot be read is as if it had not been parked."""
        if self._claim.parked is None:
            return
        try:
            partials = await waits.in_thread(self._ledger.fetch_partials, self._claim)
        except (CorruptPayload, UnknownSchema) as error:
            self._lost(error)
            return
        if partials is None or not partials.num_sampled:
            return
        for parked in partials.episodes:
            if parked.index < len(self._members):
                self._take(self._members[parked.index], parked)
        self._kept = self._marks()
        self._counts["partials_resumed"] += 1
        log.info("group %s goes on from %d parked tokens", self._claim.gid, partials.num_sampled)

    @property
    def is_behind(self) -> bool:
        """Whether something was sampled that is not parked."""
        return any(mark != kept and mark[1] > 0 for mark, kept in zip(self._marks(), self._kept, strict=True))

    @property
    def is_kept(self) -> bool:
        """Whether tokens of the group are parked, so far as this owner knows."""
        return any(num for _, num, _ in self._kept)

    async def park(self) -> bool:
        """Park what there is, in place of what was parked before. False: it is not kept, which is logged.

        Raises:
            Fenced: the claim was lost.
            EpisodeFailed: the tokens of an episode contradict each other.
        """
        marks = self._marks()
        try:
            episodes = [found for i, member in enumerate(self._members) if (found := member.partial(i)) is not None]
        except TrajectoryError as error:  # as it would be found when the episode is finished
            raise EpisodeFailed("bad_trajectory", str(error)) from error
        if not episodes or self._is_too_large:
            return False
        try:
            fits = await self._replace(episodes)
        except ServerFull as error:
            log.warning("group %s is not parked: %s", self._claim.gid, error)
            return False
        if not fits:
            # It only grows.
            self._is_too_large = True
            log.warning(
                "group %s is not parked: its %d tokens take more than buffer.max_group_bytes, and are lost if its "
                "worker stops. Raise buffer.max_group_bytes.",
                self._claim.gid,
                sum(num for _, num, _ in marks),
            )
            return False
        self._kept = marks
        self._counts["partials_parked"] += 1
        return True

    async def forget(self) -> None:
        """See that nobody goes on from what is parked: a prompt takes its place.

        Raises:
            Fenced: the claim was lost.
        """
        begun = next((i for i, member in enumerate(self._members) if member.builder.token_ids), None)
        if begun is not None and any(num for _, num, _ in self._kept):
            await self._replace([self._members[begun].prompt_only(begun)])
            self._kept = [(0, 0, False)] * len(self._members)

    def unparked(self) -> tuple[int, ...]:
        """Tokens of each episode that has some which are not parked: giving the claim back now loses these."""
        lost = (
            num - (kept if restarts == of else 0)
            for (restarts, num, _), (of, kept, _) in zip(self._marks(), self._kept, strict=True)
        )
        return tuple(num for num in lost if num)

    def sampled(self) -> tuple[int, ...]:
        """Tokens of each episode that has some, parked or not."""
        return tuple(member.num_sampled for member in self._members if member.num_sampled)

    async def _replace(self, episodes: Sequence[PartialEpisode]) -> bool:
        return await waits.in_thread(self._ledger.park, self._claim, Partials(tuple(episodes)), self._data_source)

    def _take(self, member: Progress, parked: PartialEpisode) -> None:
        try:
            member.take(parked)
        except TrajectoryError as error:
            self._lost(error)
        if member.trajectory is not None:
            self._counts["tokens_resumed"] += member.num_sampled

    def _lost(self, error: Exception) -> None:
        self._counts["partials_lost"] += 1
        log.warning("group %s starts from its prompt: %s", self._claim.gid, error)

    def _marks(self) -> list[_Mark]:
        return [(m.num_restarts, m.num_sampled, m.trajectory is not None) for m in self._members]
