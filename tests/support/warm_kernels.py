"""Compiles what a server's process runs, once in the process that all of them are forked from."""

import tests.support.machine  # noqa: F401  # its imports are what takes long
from weightsync.warm import compile_kernels

compile_kernels()
