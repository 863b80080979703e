"""A gateway in a process of its own, over one engine that nobody updates, with its buffer in memory.

    python -m tests.support.gateway_process --engine URL --model DIR [--settings JSON]

It is what `asyncrl gateway` serves, without Redis and without hosts. One line of JSON on stdout when it listens; after
that, one for each line on stdin: what it holds, and what the trajectories that were rewarded consist of.
"""

import argparse
import asyncio
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asyncrl.config import GatewayConfig
from asyncrl.envs.rewards.pool import RewardPool
from asyncrl.envs.tools.parsers import find_parser
from asyncrl.inference.board import FixedBoard
from asyncrl.inference.client import ServerClient
from asyncrl.inference.fleet import Fleet, FleetLimits
from asyncrl.inference.protocol import vocab_size
from asyncrl.rollout.chat import ChatTemplate
from asyncrl.rollout.gateway.gateway import Gateway
from asyncrl.run.collector import spare_what_lives_long
from asyncrl.run.http_server import listen, serving, url_of
from buffer import BufferConfig, Group, Leased, ReplayBuffer, Trajectory
from tests.support import fast_engine
from tests.support.chat_models import make_model_dir
from tests.support.episode_settings import episode_settings

MAX_GROUPS, GROUP_BYTES = 4096, 1 << 20
FAMILY = "chatml"


@dataclass(frozen=True)
class Settings:
    """What differs from a run's.

    Attributes:
        group_size: sessions of one data source that make a group.
        gateway: keys of the section `gateway`.
        episodes: of EpisodeSettings.
        server_wait_s: seconds a turn waits for the engine.
    """

    group_size: int = 1
    server_wait_s: float = 30.0
    gateway: tuple[tuple[str, Any], ...] = ()
    episodes: tuple[tuple[str, Any], ...] = (("max_new_tokens", 256), ("context_length", 8192))


class Served:
    """One gateway and its buffer, whose window is open."""

    def __init__(self, engine: str, model: Path, settings: Settings) -> None:
        self.chat = ChatTemplate.from_model_dir(model)
        vocabulary = vocab_size(model)
        config = BufferConfig(max_bytes=MAX_GROUPS * GROUP_BYTES, max_group_bytes=GROUP_BYTES)
        self.buffer = ReplayBuffer.in_memory("gateway", config)
        nonce = secrets.token_hex(8)
        self._branch = self.buffer.recover(nonce, None, number=0, limit=0, groups_per_version=MAX_GROUPS)
        self._num_leases = 0
        self.key = secrets.token_urlsafe(16)
        self.fleet = Fleet(
            FixedBoard([engine]),
            lambda url: ServerClient(url, vocab_size=vocabulary, batches=False),
            FleetLimits(request_timeout_s=120.0, server_wait_s=settings.server_wait_s),
        )
        self.gateway = Gateway(
            GatewayConfig(**dict(settings.gateway)),
            key=self.key,
            chat=self.chat,
            fleet=self.fleet,
            sampling=episode_settings(**dict(settings.episodes)),
            rewards=RewardPool(1, 10.0),
            parser=find_parser("auto", (model / "tokenizer_config.json").read_text())[1],
            buffer=self.buffer,
            group_size=settings.group_size,
            worker="gateway",
        )

    def report(self) -> dict[str, Any]:
        """What it holds now; the groups that are ready are taken out."""
        return {
            "rss_bytes": _rss_bytes(),
            "facts": self.gateway.facts(),
            "counts": dict(self.gateway.counts),
            "trajectories": [self._described(one) for group in self._groups() for one in group.trajectories],
        }

    def _groups(self) -> list[Group]:
        count = self.buffer.counts().get("ready", 0)
        if not count:
            return []
        self._num_leases += 1
        leased = self.buffer.lease(self._branch, 0, self._num_leases, count)
        assert isinstance(leased, Leased), leased
        groups = [group for _, group in self.buffer.fetch_each(leased.entries)]
        assert all(isinstance(group, Group) for group in groups), groups
        return groups  # type: ignore[return-value]  # checked above

    def _described(self, trajectory: Trajectory) -> dict[str, Any]:
        """A trajectory's rows as text: all of it, and what was sampled of it."""
        rows = []
        for row in trajectory.rows:
            ids = row.token_ids.tolist()
            sampled = [one for one, is_sampled in zip(ids, row.mask.tolist(), strict=True) if is_sampled]
            texts = ("".join(self.chat.decode([one]) or "|" for one in part) for part in (ids, sampled))
            rows.append(dict(zip(("text", "sampled"), texts, strict=True)))
        return {"rows": rows, "reward": trajectory.reward, "num_turns": trajectory.num_turns}


class RunningGateway:
    """The process from outside: where it is, its key, and what it says of itself."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        ready = self._line()
        self.url: str = ready["url"]
        self.key: str = ready["key"]
        self.pid = process.pid

    def report(self) -> Any:
        """See Served.report."""
        assert self._process.stdin is not None
        self._process.stdin.write("report\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the gateway ended with {self._process.wait()}"
        return json.loads(line)


@contextmanager
def running_gateway(engine: str, model: Path, settings: Settings = Settings()) -> Iterator[RunningGateway]:
    """A started gateway, gone at the end."""
    described = json.dumps(asdict(settings))
    command = [sys.executable, "-m", "tests.support.gateway_process", "--engine", engine, "--model", str(model)]
    command += ["--settings", described]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield RunningGateway(process)
        finally:
            process.kill()


def make_model(path: Path) -> fast_engine.Settings:
    """A model directory whose template has tools; an engine for it: what stands behind a # is repeated, behind a @
    slowly."""
    make_model_dir(path, FAMILY)
    vocab = json.loads((path / "tokenizer.json").read_text())["model"]["vocab"]
    added = json.loads((path / "tokenizer.json").read_text())["added_tokens"]
    (path / "config.json").write_text(json.dumps({"vocab_size": max(*vocab.values(), *(a["id"] for a in added)) + 1}))
    chat = ChatTemplate.from_model_dir(path)
    (stop_id,) = chat.eos_ids
    signs = [vocab[char] for char in "#@"]
    ids = chat.render([{"role": "user", "content": "go on #a @b"}])
    assert [one for one in ids if one in signs] == signs, "a sign is a token of its own"
    return fast_engine.Settings(
        sign_id=signs[0], slow_sign_id=signs[1], stop_id=stop_id, answer_tokens=512, label="0.0"
    )


def _rss_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


async def main(args: argparse.Namespace) -> None:
    """Serve until killed."""
    served = Served(args.engine, args.model, Settings(**json.loads(args.settings)))
    spare_what_lives_long()
    bound = listen("127.0.0.1", 0, "gateway")
    served.gateway.url = url_of(bound)
    stop = asyncio.Event()
    following = asyncio.create_task(served.fleet.run(stop))
    async with serving(served.gateway.app, bound):
        print(json.dumps({"url": served.gateway.url, "key": served.key}), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(served.report()), flush=True)
    stop.set()
    await following


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--settings", required=True)
    asyncio.run(main(parser.parse_args()))
