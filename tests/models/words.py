"""What ties the labels of the models to the code: the words that are calls, those that are not, and those left out.

A word of the ledger and admission models is one of `buffer.ledger.TRANSITIONS`, a word of the weights model a method of
the log, the transport or the receiver; whatever else happens in a model stands in HAPPENINGS. test_words.py holds the
models and the code to this page, both ways.
"""

from collections.abc import Mapping

HAPPENINGS: Mapping[str, Mapping[str, str]] = {
    "ledger": {
        "write": "a payload goes under its key before `put` names it",
        "train": "the batch changes the trainer's weights",
        "checkpoint": "the rename that makes a checkpoint durable",
        "crash": "a process is gone",
        "stall": "a process stands still, another one takes over, and it may wake up",
        "durable": "all that Redis has is on disk",
        "lose tail": "Redis comes back with what was on disk",
    },
    "admission": {
        "sample": "a server samples the first tokens of a claim, or goes on from parked ones",
        "follow": "servers take the version that head names",
        "train": "the batch changes the trainer's weights",
        "publish": "the trainer flips head, or fails to",
        "crash": "a worker is gone",
        "preempt": "all workers are gone at once",
    },
    "weights": {
        "activate": "the engine loads what is staged; its host withdraws the acknowledgement before",
        "ask engine": "a host hears from the engine what it holds",
        "advance snapshot": "the publisher's copy becomes what head says",
        "train": "the trainer's weights change",
        "checkpoint": "the rename that makes a checkpoint durable",
        "crash": "a process is gone",
        "stall": "a process stands still, another one takes over, and it may wake up",
        "lose tail": "Redis comes back without the last flip",
        "lose claim": "Redis comes back without the newest claim, the ledger's and the log's",
    },
}
"""Model -> word -> what it stands for: happenings that are no call of the ledger or of weight sync."""

NOT_MODELLED: Mapping[str, str] = {
    "renew": "moves no ordinal; a claim whose worker lives has renewed, and its newest report has arrived",
    "purge": "moves no ordinal: it drops the payload of a dead letter, which no transition reads",
    "evaluate": "moves no ordinal: it names the open evaluation, whose prompts have a ledger of their own",
}
"""Words of TRANSITIONS that are in no model, and why."""

MOVES_NOT_MODELLED: Mapping[tuple[str, str, str], str] = {
    ("put", "in_flight", "discarded"): "on_stale: discard ends what resubmit plays again; nothing waits for it",
    ("lease", "ready", "discarded"): "the same, at a lease",
    ("give_back", "leased", "ready"): "untouched groups come back as recover brings them back",
    ("give_back", "leased", "dead"): "a damaged payload once too often: a failure like a lost worker's",
    ("give_back", "leased", "filtered"): "the trainer's verdict ends a group like the worker's",
}
"""(word, from, to) of TRANSITIONS that no model makes, and why. Of commit and recover every move counts as one."""

LOG_NOT_MODELLED: Mapping[str, str] = {
    "put_document": "manifests and plans lie under their own hashes",
    "put_endpoint": "parts are got or not, wherever they lie",
    "put_state": "withdrawing is part of the model's `activate`; the other states only stop requests",
    "renew": "a server that stays away too long restarts, in the model",
    "leave": "a server that stops in order needs nothing more",
    "need": "the model reads from its servers who needs an anchor",
    "answered": "the same",
    "put_wish": "servers that sleep take no part",
    "put_pin": "a server that stays at a version for an evaluation is one that is slow",
    "forget": "only people look for servers that fell silent long ago",
    "put_order": "a server that is told to drain is one that stops in order",
    "put_adoption": "an adopted server is one that somebody else starts",
    "commit_merged": "a merged delta is the deltas between its ends: the same bits for fewer bytes",
}
"""Methods of `VersionLog` that change something and are in no model, and why."""
