"""What is explored: every rule switched off, which must be found, and the protocol as it is, which must hold.

BROKEN: rule -> a setting in which leaving it out breaks a promise. FIXED: bounds small enough for the test suite.
LARGE: bounds for the command, minutes each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.models.admission import state as admission
from tests.models.admission.model import AdmissionModel
from tests.models.explorer import Model
from tests.models.ledger import state as ledger
from tests.models.ledger.model import LedgerModel
from tests.models.weights import state as weights
from tests.models.weights.model import WeightsModel

Settings = Mapping[str, Any]
"""Name of a case -> its Setting, of whichever model."""


@dataclass(frozen=True)
class Cases:
    """The cases of one model.

    Attributes:
        model: of a setting.
        rules: the class of its rules.
        broken: rule -> setting.
        besides: rule -> other rules that must be off, too: each of them closes the same hole.
    """

    model: Callable[[Any], Model[Any]]
    rules: Callable[..., Any]
    broken: Settings
    besides: Mapping[str, tuple[str, ...]]
    fixed: Settings
    large: Settings

    def without(self, rule: str) -> Model[Any]:
        """The model of a broken case."""
        off = dict.fromkeys((rule, *self.besides.get(rule, ())), False)
        return self.model(replace(self.broken[rule], rules=self.rules(**off)))


def _ledger(faults: ledger.Faults, **settings: Any) -> ledger.Setting:
    return ledger.Setting(faults=faults, **settings)


def _admission(faults: admission.Faults, **settings: Any) -> admission.Setting:
    return admission.Setting(faults=faults, **settings)


def _weights(faults: weights.Faults, **settings: Any) -> weights.Setting:
    return weights.Setting(faults=faults, **settings)


L, A, W = ledger.Faults, admission.Faults, weights.Faults

LEDGER = Cases(
    LedgerModel,
    ledger.Rules,
    broken={
        "by_place": _ledger(L(workers=1)),
        "window": _ledger(L(crashes=1), per_version=2, per_version_later=1, ordinals=5),
        "unique_branch": _ledger(L(crashes=2)),
        "branch_nonce": _ledger(L(crashes=1, tails=1), ordinals=3),
        "branch_first": _ledger(L(crashes=2), limit=1, ordinals=2),
        "reopen": _ledger(L(crashes=1, older=1)),
        "lease_idem": _ledger(L(replies=1)),
        "put_idem": _ledger(L(replies=1)),
        "no_expiry": _ledger(L(workers=1)),
        "own_ledger": _ledger(L(tails=1)),
        "nonce": _ledger(L(tails=1), workers=2),
        "tree_lag": _ledger(L(crashes=1), limit=1, versions=3),
        "poison": _ledger(L(), poisonous=(0,)),
    },
    besides={"unique_branch": ("branch_nonce",), "branch_first": ("reopen",), "no_expiry": ("own_ledger",)},
    fixed={
        "crash, faults, lost reply": _ledger(L(1, 1, 1), ordinals=3),
        "a filtered group": _ledger(L(1, 1, 1, 1), versions=1),
        "an old trainer": _ledger(L(crashes=2)),
        "limit 1": _ledger(L(crashes=2), limit=1, ordinals=2),
        "an older checkpoint": _ledger(L(crashes=1, replies=1, older=1)),
        "a lost tail": _ledger(L(crashes=1, tails=1), versions=1, ordinals=3),
        "a lost tail and a lost worker": _ledger(L(workers=1, tails=1)),
        "two workers": _ledger(L(workers=1, replies=1), per_version=2, versions=1, workers=2),
        "groups per version change": _ledger(L(crashes=1), per_version=2, per_version_later=1, ordinals=5),
        "a group that kills trainers": _ledger(L(1, 1), poisonous=(0,)),
    },
    large={
        "two crashes, faults, lost reply": _ledger(L(2, 1, 1, 1)),
        "limit 1, old trainer": _ledger(L(2, 1), limit=1, ordinals=3),
        "an older checkpoint, two crashes": _ledger(L(2, 0, 1, 0, 0, 1)),
        "a lost tail, two crashes": _ledger(L(crashes=2, tails=1), ordinals=3),
        "a lost tail, a crash, a lost worker": _ledger(L(1, 1, tails=1), ordinals=3),
        "two workers, lost reply": _ledger(L(1, 1, 1), per_version=2, versions=1, workers=2),
    },
)


def _policies(limits: tuple[tuple[int, int], ...], **settings: Any) -> dict[str, admission.Setting]:
    """Every order and policy at these (limit, groups per version)."""
    found = {}
    for order in ("oldest", "ordinal"):
        for policy in ("drop", "wait"):
            for limit, per_version in limits:
                faults = A(deaths=1, filtered=1, publishes=1, parks=1, stops=1)
                if limit * per_version > 1:
                    faults = faults._replace(filtered=0)
                found[f"{order}, {policy}, limit {limit}, {per_version} a version"] = _admission(
                    faults,
                    order=order,
                    policy=policy,
                    limit=limit,
                    per_version=per_version,
                    ordinals=5 if per_version == 1 else 7,
                    versions=3 if per_version == 1 else 2,
                    max_groups=(limit + 2) * per_version,
                    checkpoint_every=2,
                    **settings,
                )
    return found


ADMISSION = Cases(
    AdmissionModel,
    admission.Rules,
    broken={
        "at_lease": _admission(A(), policy="wait"),
        "surplus": _admission(A(), policy="wait"),
        "fresh_retry": _admission(A(parks=1, stops=1)),
        "early_ck": _admission(A(), max_groups=2, checkpoint_every=9, limit=0),
        "credit": _admission(A(deaths=1, parks=1), max_groups=2, order="ordinal"),
        "dead_cap": _admission(A(letters=1), max_groups=1, limit=0),
        "own_number": _admission(A(publishes=1)),
        "retry_publish": _admission(A(publishes=1), limit=0),
        "publish_waiting": _admission(A(filtered=1, publishes=1)),
        "start_from": _admission(A(filtered=1), order="ordinal", strict=True),
        "excuse": _admission(A(preemptions=1), max_attempts=1),
    },
    besides={"surplus": ("at_lease", "start_from"), "retry_publish": ("publish_waiting",)},
    fixed={
        **_policies(((0, 1),)),
        "oldest, wait, limit 1": _admission(A(filtered=1, publishes=1), policy="wait"),
        "oldest, drop, limit 1, parked": _admission(A(parks=1, stops=1)),
        "oldest, wait, limit 1, parked": _admission(A(parks=1, stops=1), policy="wait"),
        "ordinal, drop, limit 1": _admission(A(deaths=1, filtered=1, publishes=1), order="ordinal"),
        "oldest, wait, limit 1, 2 a version": _admission(
            A(publishes=1), policy="wait", per_version=2, versions=2, ordinals=7, checkpoint_every=2
        ),
        "oldest, drop, limit 2": _admission(A(publishes=1), limit=2, ordinals=6),
        "smallest budget, never a checkpoint": _admission(
            A(deaths=1, publishes=1, letters=1, parks=1, stops=1), max_groups=1, checkpoint_every=9
        ),
        "never born stale": _admission(A(filtered=1), order="ordinal", strict=True, limit=2, ordinals=7),
        "a preempted cluster": _admission(A(preemptions=1, parks=1), max_attempts=1),
        "a letter played again": _admission(
            A(letters=1, resubmits=1), max_groups=2, max_attempts=2, versions=2, checkpoint_every=9
        ),
    },
    large={
        **_policies(((1, 1), (2, 1), (1, 2))),
        "smallest budget, 2 a version": _admission(
            A(1, 0, 0, 1, 1, 0, 1, 1),
            max_groups=2,
            per_version=2,
            versions=2,
            checkpoint_every=9,
            ordinals=7,
            order="ordinal",
        ),
        "never born stale, 4 versions": _admission(
            A(filtered=2), order="ordinal", strict=True, versions=4, limit=2, ordinals=7
        ),
        "a cluster preempted twice": _admission(A(preemptions=2, parks=1, filtered=1), max_attempts=1),
        "letters played again": _admission(
            A(deaths=2, letters=1, resubmits=1), max_groups=2, max_attempts=2, checkpoint_every=9
        ),
    },
)

WEIGHTS = Cases(
    WeightsModel,
    weights.Rules,
    broken={
        "idem_flip": _weights(W(replies=1)),
        "own_number": _weights(W(replies=1), limit=1, versions=3),
        "tree_names": _weights(W(crashes=1), servers=2),
        "engine_base": _weights(W(servers=1, hosts=1)),
        "write_once": _weights(W(replies=1)),
        "ack_incarnation": _weights(W(servers=1)),
        "publish_first": _weights(W(crashes=1)),
        "ask_engine": _weights(W(hosts=1)),
        "withdraw": _weights(W()),
        "needs": _weights(W(losses=1)),
        "committed_anchor": _weights(W(anchors=1)),
        "lost_head": _weights(W(tails=1)),
        "owner": _weights(W(crashes=1)),
        "claim_nonce": _weights(W(crashes=2, claims=1)),
    },
    besides={"idem_flip": ("lost_head",), "write_once": ("idem_flip",), "publish_first": ("lost_head",)},
    fixed={
        "lost and late flips, deaths": _weights(W(0, 1, 1, 1, 0, 1), versions=1),
        "a crash and a server's death": _weights(W(1, 1), versions=1),
        "two crashes": _weights(W(crashes=2), versions=1),
        "two servers": _weights(W(crashes=1), servers=2, versions=1),
        "limit 1": _weights(W(replies=1), limit=1),
        "lost parts": _weights(W(crashes=1, losses=1), versions=1),
        "anchors and pruning": _weights(W(crashes=1, anchors=1), versions=1),
        "a lost flip": _weights(W(servers=1, tails=1), versions=1),
        "lost parts and a lost flip": _weights(W(losses=1, tails=1), versions=1),
        "from nothing": _weights(W(crashes=1), is_fresh=True),
        "a lost claim": _weights(W(crashes=1, claims=1), is_fresh=True, versions=1),
    },
    large={
        "lost and late flips, host and server deaths": _weights(W(0, 2, 1, 1, 0, 1)),
        "two crashes, 2 versions": _weights(W(crashes=2)),
        "two servers, a server's death": _weights(W(1, 1), servers=2, versions=1),
        "limit 1, crash, server's death, lost flip": _weights(W(1, 1, 1), limit=1),
        "lost parts, crash, server's death": _weights(W(1, 1, 0, 0, 1)),
        "anchors and pruning, crash, server's death": _weights(W(1, 1, 0, 0, 0, 1)),
        "a lost flip, deaths": _weights(W(0, 1, 0, 1, 0, 0, 1)),
        "a lost claim, two crashes": _weights(W(crashes=2, claims=1), versions=1),
        "a lost claim, late flips": _weights(W(crashes=1, replies=1, claims=1), is_fresh=True, versions=1),
        "a lost flip, crash": _weights(W(crashes=1, tails=1)),
        "from nothing, crash, server's death, lost flip": _weights(W(1, 1, 1), is_fresh=True, versions=1),
    },
)

CASES: Mapping[str, Cases] = {"ledger": LEDGER, "admission": ADMISSION, "weights": WEIGHTS}
