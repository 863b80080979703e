"""Compiles what a server's process runs, once in the process that all of them are forked from."""

import numpy as np

import tests.support.machine  # noqa: F401  # its imports are what takes long
from weightsync.digest import digest
from weightsync.layout import AddressTable
from weightsync.planes import Scratch, apply_planes, encode_planes

_TABLE = AddressTable(np.array([64], np.int64), np.zeros(1, np.int64))
_OLD, _NEW = np.zeros(64, np.uint16), np.arange(64, dtype=np.uint16)

apply_planes(_OLD, encode_planes(_OLD, _NEW, _TABLE, Scratch()), None)
digest(_NEW, 0)
