"""Let harnesses play: serve the policy over OpenAI's and Anthropic's protocols, each session one trajectory.

A runner asks POST /sessions for one of the run's prompts, gives the harness the base URL and key of the reply, and
posts the reward to /sessions/ID/end. Servers and weights are those of `asyncrl serve-rollout`, which runs beside it.
Ctrl-C or SIGTERM stops gracefully (sessions in flight may end, up to cluster.stop_timeout_s), more of them at once.
Exit codes: 0 stopped or the run finished, 2 configuration or data, 3 Redis, machine or a port that is taken.
"""

import argparse

from asyncrl.commands.config_arguments import add_config_arguments, load_from, look, make_missing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser, starts=True)


def run(args: argparse.Namespace) -> int:
    """Serve until it is stopped or the run is finished."""
    loaded = load_from(args)
    looked = look(args, loaded)
    if looked is not None:
        return looked
    make_missing(loaded.config)
    from asyncrl.run.gateway import serve_gateway

    return serve_gateway(loaded)
