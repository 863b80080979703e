"""Settings of the buffer and of the staleness control, checked when they are read."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NumBytes = Annotated[int, Field(gt=0)]


MOST_IN_REDIS = 512 << 20
"""proto-max-bulk-len as servers have it."""


class _Settings(BaseModel):
    # Strict: True is not a limit of 1 and "2" is not a number of seconds.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class PayloadConfig(_Settings):
    """Where the bytes of groups live."""

    home: str = "redis"
    """`redis`, or the URL of a directory or object store (any fsspec URL, for example file:///shared/groups or s3://bucket/run)
    that takes the payloads above `spill_bytes`. Both clusters must reach it."""

    spill_bytes: Annotated[int, Field(ge=0)] = 1 << 20
    """Payloads larger than this go to `home`; 0: all of them. No effect while home is `redis`."""

    compress_bytes: Annotated[int, Field(ge=0)] | None = None
    """Payloads of at least this many bytes are compressed (zstd, level 1). null: never. Compression pays where the
    network is slower than about 300 MB/s; on one machine it costs more than it saves."""

    @model_validator(mode="after")
    def home_is_redis_or_a_url(self) -> Self:
        if self.home != "redis" and "://" not in self.home:
            raise ValueError(
                f"buffer.payload.home = {self.home!r} is neither 'redis' nor a URL. A path that both clusters share "
                "is written "
                "as file:///path."
            )
        return self


class BufferConfig(_Settings):
    """The replay buffer between the two clusters."""

    url: SecretStr | None = None
    """Redis or Valkey: redis://user:password@host:6379/db, rediss:// for TLS (with ?ssl_ca_certs=, ssl_certfile=,
    ssl_keyfile=) or unix:///path. Of a Redis Cluster, one node or several (redis://host,host). Behind Sentinel:
    redis+sentinel://user:password@host:26379,host/service/db, the Sentinels' own login by ?sentinel_password=. Percent-
    encode special characters of a password. null: the environment variable ASYNCRL_REDIS_URL, else the run starts
    its own, in its run directory."""

    claim_s: Seconds = 60.0
    """Seconds a claim lives after its last renewal. A worker silent for longer loses the ordinal."""

    renew_every_s: Seconds = 15.0
    """Seconds between two renewals of a claim."""

    max_attempts: Annotated[int, Field(ge=1)] = 3
    """Failures after which an ordinal goes to the dead letters. Being stale, or preempted with a whole cluster, is
    no failure."""

    max_bytes: NumBytes = 4 << 30
    """Budget for the groups in the buffer. When it is used up no new prompt is started; nothing is dropped. Must
    hold one version's groups at their largest: max_bytes >= groups per version * max_group_bytes."""

    max_group_bytes: NumBytes = 8 << 20
    """Largest encoded group. Each group in flight is charged this much until its real size is known; a larger one
    dies as `too_large`."""

    max_dead_bytes: NumBytes = 64 << 20
    """Cap for the payloads of dead letters, outside max_bytes. The oldest payloads go first; their reasons stay."""

    max_draws: Annotated[int, Field(ge=1)] = 1 << 18
    """Draws that are kept of a run whose prompts are drawn by results (data.curriculum), about 100 bytes each. Older
    ones are forgotten: a resume from so far back draws anew."""

    retry_s: Seconds = 30.0
    """Seconds over which a lost or full server is tried again before the error is raised."""

    payload: PayloadConfig = PayloadConfig()
    """Where the bytes of groups live."""

    @model_validator(mode="after")
    def renewals_fit_the_claim(self) -> Self:
        if self.claim_s < 3 * self.renew_every_s:
            raise ValueError(
                f"buffer.claim_s = {self.claim_s} must be at least 3 x buffer.renew_every_s = {self.renew_every_s}: "
                "one lost "
                "renewal would cost a living worker its group. Raise the first or lower the second."
            )
        return self

    @model_validator(mode="after")
    def one_group_fits_the_budget(self) -> Self:
        if self.max_group_bytes > self.max_bytes:
            raise ValueError(
                f"buffer.max_group_bytes = {self.max_group_bytes} is larger than buffer.max_bytes = "
                f"{self.max_bytes}: not one "
                "group could be reserved. Raise max_bytes or lower max_group_bytes."
            )
        return self

    @model_validator(mode="after")
    def one_group_fits_one_string(self) -> Self:
        to_redis = self.max_group_bytes if self.payload.home == "redis" else self.payload.spill_bytes
        if to_redis > MOST_IN_REDIS:
            name = "max_group_bytes" if self.payload.home == "redis" else "payload.spill_bytes"
            raise ValueError(
                f"buffer.{name} = {to_redis} is more than the {MOST_IN_REDIS} bytes that Redis takes as one string. "
                "Lower it; groups that are larger go to buffer.payload.home = file:///path or another URL."
            )
        return self


class StalenessConfig(_Settings):
    """How far behind the trained policy a group may be, and what happens to one that is too far."""

    limit: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    """Largest lag, in versions, that may be trained on. 0: strictly on-policy. null: the mode's."""

    policy: Literal["wait", "drop"] = "wait"
    """`wait`: a batch waits for groups in flight that would be too old in the next one. `drop`: such groups leave.
    Dropping selects on speed: it keeps short answers and loses long ones."""

    on_stale: Literal["resubmit", "discard", "mask"] = "resubmit"
    """What happens to a group past the limit. `resubmit`: its prompt is played again. `discard`: it is lost. `mask`:
    it stays, its tokens past the limit leave the loss and its rewards stay in the baseline."""

    max_stale: Annotated[int, Field(ge=0)] = 8
    """How often one prompt is resubmitted for being stale, at most; after that it is discarded."""

    order: Literal["oldest", "ordinal"] = "oldest"
    """Order of consumption. `oldest`: smallest version first. `ordinal`: strictly by prompt, so that the batches are
    reproducible; a slow group holds up its batch."""

    wait_deadline_s: Seconds = 600.0
    """Seconds a batch waits for last-chance groups under `wait`; then `drop` applies to them."""

    cancel_doomed: bool = False
    """Under `drop`: stop groups in flight that can no longer be consumed in time, instead of finishing them in vain."""
