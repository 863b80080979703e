"""Settings of weight sync, checked when they are read."""

from ipaddress import ip_address, ip_network
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

_SECTION = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, validate_default=True)


class TcpConfig(BaseModel):
    """Parts that stay in the memory of the trainer's ranks until the servers' machines have read them."""

    model_config = _SECTION

    bind: str = "127.0.0.1"
    """Address that every trainer rank listens on: of one network of its machine, or 0.0.0.0 or :: for all. Anything
    but loopback needs weightsync.key. Parts are sealed but not encrypted: use a network that strangers cannot read."""

    advertise: str | None = None
    """Name or address under which the servers' machines reach a trainer's; or a network, like 10.1.0.0/16, in which
    each of the trainer's machines has an address. null: `bind`; if that is 0.0.0.0 or ::, each machine's own address
    on its way to others."""

    first_port: Annotated[int, Field(ge=0, lt=1 << 16)] = 0
    """Each rank of a machine listens on the first free one of `num_ports` ports from here on. 0: any free port."""

    num_ports: Annotated[int, Field(ge=1)] = 64
    """Size of that range: at least the ranks of one machine."""

    keep_bytes: Annotated[int, Field(ge=1)] = 16 << 30
    """Bytes of parts that a rank keeps. It must hold the rank's shard whole, 2 bytes a weight in bfloat16, and the
    changes since; the oldest that no server needs leave first."""

    max_connections: Annotated[int, Field(ge=1, le=4096)] = 256
    """Readers that a rank serves at once. Every host opens up to four connections to every rank."""

    stall_s: Seconds = 30.0
    """Seconds without a byte after which the other side of a connection counts as dead."""

    @field_validator("bind")
    @classmethod
    def bind_is_an_address(cls, value: str) -> str:
        try:
            ip_address(value)
        except ValueError:
            raise ValueError(
                f"weightsync.tcp.bind = {value!r} is no IP address. Names are for weightsync.tcp.advertise; bind to "
                "0.0.0.0 for all networks of a machine."
            ) from None
        return value

    @field_validator("advertise")
    @classmethod
    def advertise_is_a_network_if_it_looks_like_one(cls, value: str | None) -> str | None:
        if value is not None and "/" in value:
            try:
                ip_network(value)
            except ValueError as error:
                raise ValueError(f"weightsync.tcp.advertise = {value!r} is no network: {error}.") from None
        return value

    @property
    def is_loopback(self) -> bool:
        """Can only this machine connect?"""
        return ip_address(self.bind).is_loopback


class WeightsyncConfig(BaseModel):
    """How versions of the policy travel from the trainer to the servers."""

    model_config = _SECTION

    transport: Literal["auto", "redis", "directory", "tcp"] = "auto"
    """What moves the parts of a version: `redis`, the run's own; `directory`, files that both sides see (shared
    storage, an object store, or /dev/shm on one machine); `tcp`, direct connections to the trainer's ranks, which keep
    them in memory. auto: the directory if `directory` is set, else redis. Head, records and acknowledgements are in
    Redis either way."""

    tcp: TcpConfig = TcpConfig()
    """Of transport = tcp."""

    url: SecretStr | None = None
    """Redis or Valkey of the log, and of the parts unless they are files: redis://, rediss://, unix:// or
    redis+sentinel://host,host/service. null: the buffer's. Not a Redis Cluster, which the buffer
    may use."""

    directory: str | None = None
    """Folder for the parts, the same path on the trainer's and the servers' machines; or the URL of an object store
    (any fsspec URL, for example s3://bucket/run), which needs that store's package: s3fs for s3://, gcsfs for gs://.
    Settings and keys of the store come from the environment, as its package reads them."""

    mode: Literal["auto", "changes"] = "auto"
    """Whether a version's parts hold changes or whole weights. changes: the fewest bytes. auto: what is in the engines
    sooner by the rates that each rank measures, which on a fast link with most weights changed are whole ones."""

    encoder_threads: Annotated[int, Field(ge=1, le=64)] = 2
    """Threads of each trainer rank that compare its weights with the version before. More make a version sooner where
    the machine has cores to spare."""

    anchor_interval: Annotated[int, Field(ge=1)] = 64
    """A whole set of weights is written beside every this many versions' changes, and earlier when the changes since
    the last one weigh more than it, or when a server asks. A server that starts late reads the newest and what
    follows. Lower: late servers start faster, the trainer uploads more."""

    keep_deltas: Annotated[int, Field(ge=0)] = 8
    """Changes of at least this many newest versions are kept, also when a newer anchor makes them unnecessary, so that
    a server that is a little behind need not load a whole set."""

    merged_share: Annotated[float, Field(ge=0, le=1)] = 0.25
    """While a living server is several versions behind, their changes are also stored merged into one, a fraction of
    their sum, so that it catches up with less. At most this share of what versions take is put for that. 0: never."""

    bucket_words: Annotated[int, Field(ge=64, lt=1 << 31)] = 4 << 20
    """Weights per part at most. 2-8 million: smaller parts cost more bytes each, larger ones fall out of the cache."""

    kv: Literal["keep", "recompute", "abort"] = "recompute"
    """What an update does to requests in flight. recompute: they go on as if their tokens so far were a prompt of the
    new weights. keep: they go on at once with the cache that the old weights made; cheaper, and what they sample then
    is of neither version. abort: they are answered with what they have, and their episodes ask again, wherever there
    is room; nothing waits for a server that is long in loading."""

    max_version_skew: Annotated[int, Field(ge=0)] | None = None
    """A server this many published versions behind head gets no new requests. null: no limit but the staleness
    limit's own."""

    publish_beside: bool = True
    """The trainer trains on while a version is compared with the one before and sent; it waits only for a copy of its
    rank's weights, which takes their bytes in the wire dtype of host memory. false: it waits for the whole publish, and
    keeps no copy. With a staleness limit of 0 it waits anyway."""

    publish_deadline_s: Seconds = 300.0
    """Seconds that publishing a version may take before it counts as failed; the run goes on with the old head."""

    stage_deadline_s: Seconds = 600.0
    """Seconds that bringing a version to a server's machine may take, while the server goes on sampling."""

    activate_deadline_s: Seconds = 120.0
    """Seconds that a server may be paused for an update before it counts as failed."""

    ack_lease_s: Seconds = 30.0
    """Seconds after its last sign of life for which a server counts as living. Its host renews at a third of it."""

    stage_dir: str | None = None
    """Folder for staged parts on the servers' machines, best in memory. null: /dev/shm where it exists."""

    key: SecretStr | None = None
    """A secret of at least 16 characters shared by trainer and servers. Parts are then sealed with it, so that whoever
    can write to the transport cannot give the servers weights of his own. null: parts are only checked for damage."""

    @field_validator("key")
    @classmethod
    def key_is_long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < 16:
            raise ValueError(
                "weightsync.key is shorter than 16 characters and could be guessed. Make one with "
                "`python -c 'import secrets; print(secrets.token_hex(32))'`."
            )
        return value

    @model_validator(mode="after")
    def directory_is_given_where_it_is_needed(self) -> Self:
        if self.transport == "directory" and self.directory is None:
            raise ValueError(
                "weightsync.transport = directory needs weightsync.directory, a folder that both sides see under "
                "the same path."
            )
        if self.transport in ("redis", "tcp") and self.directory is not None:
            raise ValueError(
                f"weightsync.directory = {self.directory!r} has no effect with weightsync.transport = "
                f"{self.transport}. Remove it, or set the transport to directory or auto."
            )
        return self

    @model_validator(mode="after")
    def strangers_cannot_read_or_write_parts_over_tcp(self) -> Self:
        if self.transport == "tcp" and self.key is None and not self.tcp.is_loopback:
            raise ValueError(
                f"weightsync.tcp.bind = {self.tcp.bind!r} can be reached from other machines, and without "
                "weightsync.key anybody there could read the weights and delete them. Set the key for both commands, "
                "or bind to 127.0.0.1 if all runs on one machine."
            )
        if self.transport != "tcp" and self.tcp != TcpConfig():
            raise ValueError(
                f"weightsync.tcp.* has no effect with weightsync.transport = {self.transport}. Remove it, or set the "
                "transport to tcp."
            )
        return self

    @property
    def moves_by(self) -> Literal["redis", "directory", "tcp"]:
        """The transport that `auto` stands for here."""
        if self.transport == "auto":
            return "redis" if self.directory is None else "directory"
        return self.transport

    def seal_key(self) -> bytes | None:
        """The 32 bytes that parts are sealed with, derived from `key`."""
        if self.key is None:
            return None
        from blake3 import blake3  # here: reading a config file must not load the codec's libraries

        secret = self.key.get_secret_value().encode()
        return blake3(secret, derive_key_context="asyncrl weightsync 2025 seal of parts").digest()
