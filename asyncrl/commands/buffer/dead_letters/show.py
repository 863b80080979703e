"""Show one group that died: why, and its trajectories with rewards, versions, and text (ids without a tokenizer).

Exit codes: 0 shown; 1 the ordinal is not a dead letter, or its payload is missing or damaged; what is known is shown.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from asyncrl.commands.buffer.dead_letters.list import to_json
from asyncrl.commands.buffer.text import texts_of
from asyncrl.commands.config_arguments import add_config_arguments, load_from
from asyncrl.commands.tables import facts

if TYPE_CHECKING:
    from asyncrl.data.texts import Texts
    from buffer import Group, ReplayBuffer
    from buffer.answers import DeadLetter

MOST_IDS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser, subject=("ordinal", int, "ordinal of the dead letter"))
    parser.add_argument("--json", action="store_true", help="print as JSON, with all token ids")


def run(args: argparse.Namespace) -> int:
    """Show."""
    from asyncrl.run.existing import open_existing

    config = load_from(args).config
    with open_existing(config) as (buffer, _):
        letter = next((letter for letter in buffer.dead_letters() if letter.ordinal == args.ordinal), None)
        if letter is None:
            print(
                f"ordinal {args.ordinal} is not a dead letter; `asyncrl buffer dead-letters list` shows them",
                file=sys.stderr,
            )
            return 1
        group, problem = payload_of(buffer, letter)
        texts = texts_of(config, buffer)
    shown = {**to_json(letter), "payload": problem or "sound"}
    if group is not None:
        shown["trajectories"] = list(trajectories(group, texts))
        shown["text"] = texts.why_not or "by the run's tokenizer"
    print(json.dumps(shown) if args.json else render(shown))
    return 1 if group is None and letter.entry is not None else 0


def payload_of(buffer: "ReplayBuffer", letter: "DeadLetter") -> tuple["Group | None", str]:
    """The group of a letter, or why there is none."""
    from buffer import CorruptPayload, UnknownSchema

    if letter.entry is None:
        return None, "none: the group died before it had one, or it was purged, or buffer.max_dead_bytes was reached"
    try:
        return buffer.fetch(letter.entry), ""
    except (CorruptPayload, UnknownSchema) as error:
        return None, str(error)


def trajectories(group: "Group", texts: "Texts") -> Iterator[dict[str, Any]]:
    """Each trajectory as plain data."""
    from buffer import label

    for index, one in enumerate(group.trajectories):
        rows = [
            {
                "num_tokens": len(row.token_ids),
                "num_prompt_tokens": row.num_prompt_tokens,
                "num_sampled": row.num_sampled,
                "versions": {label(span.version): span.num_tokens for span in row.spans},
                "token_ids": row.token_ids.tolist(),
                "prompt": texts.decode(row.token_ids[: row.num_prompt_tokens].tolist()) if texts.decode else None,
                "answer": texts.decode(row.token_ids[row.num_prompt_tokens :].tolist()) if texts.decode else None,
            }
            for row in one.rows
        ]
        yield {
            "trajectory": index,
            "policy": one.policy,
            "reward": one.reward,
            "reward_error": one.reward_error,
            "reward_parts": dict(one.reward_parts),
            "finish_reason": one.finish_reason,
            "num_turns": one.num_turns,
            "rows": rows,
        }


def render(shown: dict[str, Any]) -> str:
    """The letter for people."""
    names = ("ordinal", "attempt", "reason", "error", "data_source", "payload")
    head = [(name, str(shown[name])) for name in names if shown[name] is not None]
    blocks = [facts(head)]
    for one in shown.get("trajectories", ()):
        blocks.append(facts(trajectory_rows(one)))
    if "text" in shown and not shown["text"].startswith("by"):
        blocks.append(f"token ids instead of text: {shown['text']}")
    return "\n\n".join(blocks)


def trajectory_rows(one: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A trajectory for people."""
    from asyncrl.data.policies import GREEDY_BASELINE

    verdict = f"reward {one['reward']}" if one["reward"] is not None else f"no reward: {one['reward_error']}"
    parts = "".join(f", {name} {value}" for name, value in one["reward_parts"].items())
    greedy = " (greedy)" if one["policy"] == GREEDY_BASELINE else ""
    yield (
        f"trajectory {one['trajectory']}{greedy}",
        f"{verdict}{parts}; {one['finish_reason']} after {one['num_turns']} turns",
    )
    for row in one["rows"]:
        versions = ", ".join(f"{count} of {version}" for version, count in row["versions"].items())
        yield "tokens", f"{row['num_tokens']}: {row['num_prompt_tokens']} of the prompt, sampled {versions or 'none'}"
        if row["answer"] is None:
            more = f" and {row['num_tokens'] - MOST_IDS} more, see --json" if row["num_tokens"] > MOST_IDS else ""
            yield "ids", " ".join(map(str, row["token_ids"][:MOST_IDS])) + more
        else:
            yield "prompt", row["prompt"]
            yield "answer", row["answer"]
