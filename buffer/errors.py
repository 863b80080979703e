"""What can go wrong in the buffer, as one tree.

BufferError                  base: catch it to catch all of ours
  Fenced                     the caller's token or branch is older than the ledger's: another one took over
  Behind                     the ledger is older than the caller's branch: Redis lost its tail
  RunMismatch     ValueError the run record says something else than this caller
  ServerRefused   ValueError the server answers, but must not be used as it is configured; the fix is in the message
  ServerLost      ConnectionError   the server did not answer for the whole of buffer.retry_s
  ServerFull      ConnectionError   the server answers, but had no memory left for the whole of buffer.retry_s
  CorruptPayload  ValueError a payload is missing, foreign or damaged
  UnknownSchema   ValueError a payload was written by a newer major version
  TooLarge        ValueError a group is larger than one payload can be
  BudgetTooSmall  ValueError buffer.max_bytes cannot hold the groups of one version
  TrajectoryError ValueError a trajectory contradicts itself; the message names the field
"""


class BufferError(Exception):
    """Base of every error that the buffer raises on purpose."""


class Fenced(BufferError):
    """The caller was replaced: its token or its branch is no longer the ledger's. What it holds must be dropped."""


class Behind(BufferError):
    """The ledger does not know the caller's branch: Redis lost its tail, the trainer resumes from its checkpoint."""


class RunMismatch(BufferError, ValueError):
    """The run record and this caller differ in a field that must be the same on both sides."""


class ServerRefused(BufferError, ValueError):
    """The server must not be used as it is configured."""


class ServerLost(BufferError, ConnectionError):
    """The server did not answer within the bounded time of retries."""


class ServerFull(BufferError, ConnectionError):
    """The server refused writes for lack of memory for the whole of the bounded time of retries."""


class CorruptPayload(BufferError, ValueError):
    """A payload is missing, belongs to another writer, or its bytes are not what was written."""


class UnknownSchema(BufferError, ValueError):
    """A payload carries a schema number that this version cannot read."""


class TooLarge(BufferError, ValueError):
    """A group is larger than one payload can be."""


class BudgetTooSmall(BufferError, ValueError):
    """The budget of bytes cannot hold one version's groups at their largest: training could never start."""


class TrajectoryError(BufferError, ValueError):
    """A trajectory, or a part of one, contradicts itself."""
