"""Five hundred versions with servers that lag, hang, die without a word and come back: what is stored stays bounded,
and whoever lives has a way to head."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from weightsync import chain, merging
from weightsync.log.records import MergedDelta, Part, Upload, VersionRecord
from weightsync.versions import pack

VERSIONS, MODEL_BYTES, KEEP, SHARE = 500, 10_000, 4, 0.25
LEASE = 5  # versions after which a server that died is no longer counted


class Server:
    """`have` None: it holds nothing that the log knows. What it was about to read, it reads when it is lucky."""

    def __init__(self, have: int | None, now: int) -> None:
        self.have, self.seen, self.mood = have, now, "follows"
        self.reading: chain.Path | None = None


class LongRun:
    """The log, the parts and the fleet as numbers; decisions are the real ones."""

    def __init__(self, seed: int, interval: int, most_delta: int) -> None:
        self.rng = random.Random(seed)
        self.interval, self.most_delta = interval, most_delta
        self.records = [VersionRecord(0, None, "o", "layout", 1, model_dir="/m")]
        self.stored: dict[str, int] = {}
        self.allowance = merging.Allowance(SHARE, MODEL_BYTES)
        self.servers = [Server(0, 0) for _ in range(5)]
        self.published = self.merged = self.reads = self.lost_reads = 0

    def upload(self, version: int, base: int, num_bytes: int) -> Upload:
        nonce = f"{version}-{base}-{len(self.stored)}-{self.rng.random()}"
        self.stored[nonce] = num_bytes
        return Upload(version, base, nonce, "plan", (Part(0, 0, num_bytes),))

    def publish(self, number: int) -> None:
        version, base = pack(1, number), self.records[-1].version
        delta = self.upload(version, base, self.rng.randint(1, self.most_delta))
        self.published += delta.num_bytes
        self.records.append(VersionRecord(version, base, delta.nonce, "layout", number, delta))
        if chain.anchor_due(self.records, self.interval, MODEL_BYTES):
            self.records[-1] = self.records[-1].with_anchor(self.upload(version, version, MODEL_BYTES))
        self.allowance.earn(delta.num_bytes)
        self.merge(number)
        gone = chain.sweep(self.records, self.held(number), KEEP)
        for upload in gone.uploads:
            del self.stored[upload.nonce]
        self.records = [self.left(record, gone) for record in self.records if record.version not in gone.versions]

    def merge(self, number: int) -> None:
        way = merging.due(self.records, self.held(number), "plan") if self.allowance.is_open else None
        if way is None:
            return
        # As measured: twice the versions take about half again the bytes.
        num_bytes = min(MODEL_BYTES, int(way.num_bytes * len(way.deltas) ** -0.4))
        base = way.deltas[0].base
        assert base is not None
        merged = MergedDelta(self.upload(self.records[-1].version, base, num_bytes))
        self.merged += num_bytes
        self.allowance.spend(num_bytes)
        last = self.records[-1]
        self.records[-1] = VersionRecord(**{**last.__dict__, "merged": (*last.merged, merged)})

    def left(self, record: VersionRecord, gone: chain.Sweep) -> VersionRecord:
        merged = tuple(m for m in record.merged if (m.base, m.version) not in gone.merged)
        anchor = None if record.version in gone.anchors else record.anchor
        return VersionRecord(**{**record.__dict__, "merged": merged, "anchor": anchor})

    def held(self, now: int) -> list[int]:
        """What the log says of living servers; one that died is counted until its lease ends."""
        return [s.have for s in self.servers if s.have is not None and now - s.seen < LEASE]

    def serve(self, now: int) -> None:
        for server in self.servers:
            if self.rng.random() < 0.03:
                server.mood = self.rng.choice(["follows", "lags", "hangs", "dead"])
                if server.mood != "dead" and now - server.seen >= LEASE:
                    # Back after its lease: as it was, or started anew from its directory.
                    server.have = self.rng.choice([server.have, 0, None])
            if server.mood == "dead":
                server.reading = None
                continue
            server.seen = now
            if server.mood == "follows" or (server.mood == "lags" and self.rng.random() < 0.15):
                self.read(server)

    def read(self, server: Server) -> None:
        """Read what it set out to read, or plan anew if that was swept; who lags sets out at one version and has read
        at another."""
        way = server.reading or chain.path(self.records, server.have)
        if way is None:
            return
        if server.mood == "lags" and server.reading is None:
            server.reading = way
            return
        names = [u.nonce for hop in way.deltas for u in [hop.delta] if u is not None]
        names += [way.start.anchor.nonce] if way.start is not None and way.start.anchor is not None else []
        self.reads += 1
        if all(name in self.stored for name in names):
            server.have, server.reading = way.target.version, None
        else:
            self.lost_reads += 1
            server.reading = chain.path(self.records, server.have)

    def check(self, now: int) -> None:
        head = self.records[-1].version
        for have in [None, *self.held(now)]:
            way = chain.path(self.records, have)
            assert way is not None or have == head
            if way is not None:
                uploads = [hop.delta for hop in way.deltas] + [None if way.start is None else way.start.anchor]
                assert all(upload.nonce in self.stored for upload in uploads if upload is not None)
        assert {u.nonce for r in self.records for u in r.uploads()} == self.stored.keys()
        # The newest anchor; deltas before it that weigh no more than it, after it no more than the model and one; the
        # newest few; and merged ones within their share of all that.
        deltas = 2 * MODEL_BYTES + (KEEP + 1) * self.most_delta
        merged = sum(m.upload.num_bytes for r in self.records for m in r.merged)
        assert sum(self.stored.values()) - merged <= MODEL_BYTES + deltas
        assert merged <= SHARE * (MODEL_BYTES + deltas) + MODEL_BYTES
        assert self.merged <= SHARE * (MODEL_BYTES + self.published) + MODEL_BYTES


@settings(max_examples=3, deadline=None)
@given(
    seed=st.integers(0, 1 << 32), interval=st.sampled_from([8, 24]), most_delta=st.sampled_from([40, 300, MODEL_BYTES])
)
def test_what_is_stored_is_bounded_and_the_living_have_a_way(seed: int, interval: int, most_delta: int) -> None:
    """B067: what is swept while a server reads it leaves that server another way."""
    run = LongRun(seed, interval, most_delta)
    for number in range(1, VERSIONS + 1):
        run.publish(number)
        run.serve(number)
        run.check(number)
    for server in run.servers:
        server.mood, server.have = "follows", server.have if server.have in run.held(VERSIONS) else None
        for _ in range(3):
            run.read(server)
        assert server.have == run.records[-1].version


def test_the_long_run_has_what_it_is_about() -> None:
    run = LongRun(1, 24, 300)
    kinds = set()
    for number in range(1, VERSIONS + 1):
        run.publish(number)
        run.serve(number)
        kinds |= {server.mood for server in run.servers}
    assert kinds == {"follows", "lags", "hangs", "dead"}
    assert run.merged > 0
    assert run.reads > 500
    assert run.lost_reads > 0
