"""GPG: the plain policy gradient with centred rewards, scaled up by the share of rewards other than 0."""

from functools import partial

from asyncrl.algorithms.advantages import scaled_by_informative
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.tables import CORRECTIONS, LOSSES

ALGORITHM = Algorithm(
    name="gpg",
    advantage=partial(scaled_by_informative, f_norm=1.0, singleton="zero"),
    correction=CORRECTIONS["tis"],
    loss=LOSSES["reinforce"].loss,
    source="arXiv:2504.02546",
)
