"""A local inference server: SGLang's routes over the CPU engine. `python -m asyncrl.inference.local_server --help`.

Prints `ready http://host:port` when it serves. SIGTERM or SIGINT: lets running requests end for a moment, exits 0.
Exit codes: 2 for a port in use, a model it cannot run or wrong flags; 70 when the engine died.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import uvicorn

from asyncrl.inference.http_protocol import BoundedHttp
from asyncrl.inference.key import KEY_VARIABLE, server_key
from asyncrl.inference.listening import bound_socket
from asyncrl.inference.local_engine import self_check
from asyncrl.inference.local_engine.asgi import App, Keys
from asyncrl.inference.local_engine.compute import ComputeWeights, resolve_dtype
from asyncrl.inference.local_engine.engine import Engine, EngineSettings
from asyncrl.inference.local_engine.generate_body import BodyLimits
from asyncrl.inference.local_engine.model_config import UnsupportedModel
from asyncrl.inference.local_engine.models import LocalModel
from asyncrl.inference.local_engine.parent import watch_parent
from asyncrl.inference.local_engine.routes_control import ControlRoutes
from asyncrl.inference.local_engine.routes_generate import GenerateRoutes
from asyncrl.inference.local_engine.routes_weights import WeightRoutes
from asyncrl.inference.local_engine.service import Service, ServiceLimits
from asyncrl.inference.local_engine.text import TextCodec
from asyncrl.inference.local_engine.weight_updates import WeightUpdates
from asyncrl.inference.local_engine.weights import DTYPES, WeightsMismatch

EXIT_USAGE, EXIT_ENGINE_DIED = 2, 70

logger = logging.getLogger("asyncrl.local_server")


class CannotStart(Exception):
    """The server cannot start; the message is all that the user needs."""


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; names are SGLang's where it has them."""
    parser = argparse.ArgumentParser(prog="asyncrl.inference.local_server", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model-path", type=Path, required=True, help="Hugging Face directory with config.json and *.safetensors")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=30000, help="0 takes a free port and prints it")
    add("--dtype", choices=sorted(DTYPES), default="bfloat16", help="of the stored weights, which updates write")
    add("--compute-dtype", choices=["auto", *sorted(DTYPES)], default="auto", help="of products and the KV cache")
    add("--max-running-requests", type=int, default=64)
    add("--context-length", type=int, help="default: the model's max_position_embeddings")
    add("--max-queued-requests", type=int, default=ServiceLimits.max_queued_requests)
    add("--max-queued-tokens", type=int, default=ServiceLimits.max_queued_tokens)
    add("--prefix-cache-mb", type=int, default=EngineSettings.prefix_cache_bytes >> 20, help="0: no prompt is kept")
    add("--stream-interval", type=int, default=8, help="tokens between two events of a stream")
    add("--seed", type=int, default=0, help="for requests without a sampling_seed")
    add("--weight-version", default="default", help="label of the weights in --model-path")
    add("--custom-weight-loader", nargs="*", default=[], metavar="MODULE.FUNCTION", help="load_formats to accept")
    add("--deterministic", action="store_true", help="try at start whether results depend on batch mates, and say so")
    add("--threads", type=int, default=1, help="of torch; more than one only on an otherwise idle machine")
    add("--health-timeout-s", type=float, default=ServiceLimits.health_timeout_s)
    add("--drain-s", type=float, default=2.0, help="seconds that running requests get at SIGTERM")
    add("--parent-pid", type=int, help="exit when this process ends")
    add("--api-key", default=server_key(), help=f"bearer key for generation and information; default: ${KEY_VARIABLE}")
    add("--admin-api-key", help="bearer key for control routes, then closed to --api-key")
    return parser.parse_args(argv)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: the port is known to be ours before the model is loaded.

    Raises:
        CannotStart: the port is in use or the address is not this machine's.
    """
    try:
        return bound_socket(host, port)
    except OSError as error:
        raise CannotStart(
            f"cannot listen on {host}:{port}: {error.strerror}. Another process may use the port; choose another with "
            "--port, or 0 for a free one."
        ) from error


def build_engine(args: argparse.Namespace) -> tuple[Engine, TextCodec | None]:
    """Loads the model and checks the machine.

    Raises:
        CannotStart: the model directory cannot be served.
    """
    try:
        model = LocalModel.from_dir(args.model_path, DTYPES[args.dtype])
    except (UnsupportedModel, WeightsMismatch) as error:
        raise CannotStart(str(error)) from error
    compute = ComputeWeights(model.weights, resolve_dtype(args.compute_dtype, model.weights))
    codec = TextCodec.from_dir(args.model_path)
    settings = EngineSettings(
        max_running=args.max_running_requests,
        context_length=args.context_length or model.config.max_positions,
        prefix_cache_bytes=args.prefix_cache_mb << 20,
        seed=args.seed,
    )
    if args.deterministic and (difference := self_check.batch_mates_differ(model, compute)) is not None:
        logger.warning(
            "on this CPU results depend on batch mates: %s. Answers are right, but a run cannot be repeated bit "
            "for bit; another --compute-dtype (inference.compute_dtype) may do better.",
            difference,
        )
    return Engine(model, compute, settings, codec), codec


def build_app(args: argparse.Namespace, engine: Engine, codec: TextCodec | None) -> tuple[App, Service]:
    """The ASGI application over an engine, and its service."""
    limits = ServiceLimits(args.max_queued_requests, args.max_queued_tokens, args.health_timeout_s)
    updates = WeightUpdates(engine, args.custom_weight_loader)
    service = Service(updates, limits, model_path=str(args.model_path), version=args.weight_version)
    body = BodyLimits(
        vocab=engine.model.config.vocab,
        context_length=engine.settings.context_length,
        stream_interval=args.stream_interval,
        encode=None if codec is None else codec.encode,
    )
    secret = {"api_key", "admin_api_key"}
    facts = {key: str(v) if isinstance(v, Path) else v for key, v in vars(args).items() if key not in secret}
    routes = [
        *GenerateRoutes(service, body, codec).routes(),
        *ControlRoutes(service, facts).routes(),
        *WeightRoutes(service).routes(),
    ]
    return App(routes, Keys(args.api_key, args.admin_api_key)), service


class _Server(uvicorn.Server):
    """uvicorn that says when it serves, and leaves signals to `serve`."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = sockets[0].getsockname()[:2] if sockets else ("?", 0)
        print(f"ready http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(app: App, service: Service, bound: socket.socket, args: argparse.Namespace) -> None:
    """Serves until a signal or the parent's end, then drains."""
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # nobody asks who a client is
        timeout_graceful_shutdown=2,
        ws="none",
        http=BoundedHttp,
    )
    server = _Server(config)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if args.parent_pid is not None:
        watch_parent(args.parent_pid, lambda: loop.call_soon_threadsafe(stop.set))
    service.engine.start(loop)
    serving = asyncio.create_task(server.serve(sockets=[bound]), name="http server")
    stopping = asyncio.create_task(stop.wait(), name="wait for a signal")
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    await service.close(args.drain_s)
    server.should_exit = True
    await serving
    service.engine.stop()


def die(error: BaseException) -> None:
    """Ends the process as a dead engine must: connections drop, and whoever watches it starts another."""
    traceback.print_exception(error, file=sys.stderr)
    print(f"the engine died ({type(error).__name__}: {error}); this server ends with it", file=sys.stderr, flush=True)
    os._exit(EXIT_ENGINE_DIED)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the server; returns the exit code."""
    args = parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    torch.set_num_threads(args.threads)
    try:
        bound = bind(args.host, args.port)
        engine, codec = build_engine(args)
    except CannotStart as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    app, service = build_app(args, engine, codec)
    service.on_death = die
    asyncio.run(serve(app, service, bound, args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
