"""M2PO: no clip; the few tokens whose policies disagree most are rejected."""

from functools import partial

from asyncrl.algorithms.advantages import group_relative
from asyncrl.algorithms.base import Algorithm, Selection
from asyncrl.algorithms.rejection import minimum_variance_selected
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="m2po",
    advantage=partial(group_relative, divide_by_std=True, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["surrogate"].loss,
    source="arXiv:2510.01161",
    selection=Selection(partial(minimum_variance_selected, threshold=0.04), rejects=True),
)
