"""Section gateway: harnesses that play the run's prompts over HTTP, and the limits of having them."""

from typing import Literal, Self

from pydantic import Field, model_validator

from asyncrl.config.section import Section


class GatewayConfig(Section):
    """Where `asyncrl gateway` listens, what it holds in memory, and how long it waits for harnesses."""

    host: str = "127.0.0.1"
    """Address that it listens on. Requests carry keys in clear text: keep it private, or put TLS before it."""

    port: int = Field(8700, ge=0, le=65535)
    """Port that it listens on; 0 lets the system choose a free one."""

    public_url: str | None = Field(None, pattern=r"^https?://[^\s/]+[^\s]*[^\s/]$")
    """Address under which harnesses reach it, for the base URLs that it gives out. None: host and port."""

    model_name: str = Field("policy", pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")
    """Name of the policy in the protocols. Requests may name any model: they get this one."""

    max_sessions: int = Field(2048, ge=1)
    """Sessions that are open at once. Whoever asks for another is told to come back (429)."""

    max_bytes: int = Field(2 << 30, ge=1 << 20)
    """Memory of all open sessions, about. Past it no session is opened (429). The bodies of requests in flight have as
    much again."""

    max_session_bytes: int | None = Field(None, ge=1 << 16)
    """Memory of one session, about: 9 bytes a token and what lies around it. Past it it takes no further turn (413).
    null: its share of buffer.max_group_bytes, as a larger group could not be put."""

    max_body_bytes: int = Field(32 << 20, ge=1 << 10)
    """Longest body of one request: the whole conversation as JSON."""

    max_rows: int = Field(256, ge=1)
    """Rows of one session: its first one, and one more for each retry, edit, compaction and sub-agent."""

    max_turns_in_flight: int = Field(16, ge=1)
    """Turns of one session that are sampled at once, by sub-agents for example."""

    turn_timeout_s: float = Field(900.0, gt=0)
    """Seconds one request may take before it is answered with an error (504). Its session stays."""

    offer_timeout_s: float = Field(120.0, gt=0)
    """Seconds a session of a reserved group waits for a harness while no other session of the group is played; then the
    group is given back, which costs nothing."""

    session_timeout_s: float = Field(4 * 3600.0, gt=0)
    """Seconds a harness may play a reserved session. Then the session has no reward: it is masked and counted."""

    idle_timeout_s: float = Field(1800.0, gt=0)
    """Seconds a reserved session may go without a turn before it ends like that."""

    online_timeout_s: float = Field(86400.0, gt=0)
    """Seconds an online session is kept without a turn or a reward, a rewarded one without the others of its group,
    and a group without admission. What is kept no longer is counted. Tokens past staleness.limit are stale all the
    same."""

    stream_tokens: int | None = Field(64, ge=1)
    """Tokens of a stream's answer that come at a time: what a harness sees of it grows so. null: it comes at once. The
    server says the answer so far with each piece, so small pieces of long answers cost bytes and CPU. With
    inference.record_experts each piece is a request of its own, and needs the server's prefix cache."""

    splits_thoughts: bool = True
    """Show what an answer begins with between <think> and </think> as reasoning. false: as part of the text."""

    other_sampling: Literal["ignore", "refuse"] = "ignore"
    """What to do with a request's temperature or top_p that is not the run's. The run's is used in any case: the
    trainer computes its logprobs at it. `ignore` counts such requests, `refuse` answers with an error (400)."""

    @model_validator(mode="after")
    def a_session_fits(self) -> Self:
        """Refuse limits of which the smaller could never be reached."""
        if (self.max_session_bytes or 0) > self.max_bytes:
            raise ValueError(
                f"gateway.max_session_bytes = {self.max_session_bytes} is more than gateway.max_bytes = "
                f"{self.max_bytes}: one session could fill the gateway. Lower the first or raise the second."
            )
        return self
