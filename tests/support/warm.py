"""What the processes that tests fork have done already: the imports of servers and ranks, and their kernels compiled.

It computes nothing: a process that is forked has no threads but its first.
"""

from importlib import import_module

from asyncrl.inference.local_engine import fused
from weightsync.warm import compile_kernels

for name in (
    *("asyncrl.inference.local_server", "asyncrl.run.trainer_rank", "asyncrl.trainer.export"),
    *("tests.support.machine", "tests.support.trainer_run"),
):
    import_module(name)
compile_kernels()
fused.compile_kernels()
