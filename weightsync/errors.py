"""What can go wrong between a trainer and its servers, as one tree.

WeightsyncError               base: catch it to catch all of ours
  CorruptDelta     ValueError a part must not be applied: its bytes or its header are not what was published
  LayoutMismatch   ValueError the two sides hold different tensors; the message names the first that differs
  ModelDirError    ValueError a model directory cannot be read as wire-exact weights
  ShardError       ValueError the trainer's shards do not make up the model
  OriginMismatch   ValueError version 0.0 of the log is another model than this one
  ChainBroken                 no path leads from what a server holds to head
  DigestMismatch              weights are not the ones that were published
  Fenced                      a newer branch owns the log: this trainer was replaced
  BaseMismatch                a flip named a base that is not head
  StaleIncarnation            a newer start of the same server is registered
  PublishFailed               head and snapshot are as they were
  LogLost          ConnectionError   the version log did not answer
  TransportError   OSError    parts could not be moved
    PartMissing               a part is not there (any more)
    TransportFull             the transport has no room left
    DeadlineExceeded TimeoutError    the time given to a call passed
    TransportLost    ConnectionError the transport did not answer
"""


class WeightsyncError(Exception):
    """Base of every error that weightsync raises on purpose."""


class CorruptDelta(WeightsyncError, ValueError):
    """A part that must not be applied; the message says which field, what was found and what was expected."""


class LayoutMismatch(WeightsyncError, ValueError):
    """Names, shapes, dtypes or ties of the two sides differ."""


class ModelDirError(WeightsyncError, ValueError):
    """A model directory is missing, damaged, or not in the wire dtype."""


class ShardError(WeightsyncError, ValueError):
    """Shards that do not cover the manifest once, or changed since the plan was made."""


class OriginMismatch(WeightsyncError, ValueError):
    """The log began from another model directory."""


class ChainBroken(WeightsyncError):
    """No path of parts leads from what a server holds to head; the need for an anchor has been recorded."""


class DigestMismatch(WeightsyncError):
    """A digest of weights differs from the one in the version's record."""


class Fenced(WeightsyncError):
    """A newer branch owns the log; whoever reads this must stop publishing."""


class BaseMismatch(WeightsyncError):
    """A flip's base is not head."""


class StaleIncarnation(WeightsyncError):
    """The caller speaks for an earlier start of its server."""


class PublishFailed(WeightsyncError):
    """A version was not published; head and snapshot are as they were before the call."""


class LogLost(WeightsyncError, ConnectionError):
    """The version log did not answer within the bounded time of retries."""


class TransportError(WeightsyncError, OSError):
    """Parts could not be moved."""


class PartMissing(TransportError):
    """A part is not in the transport: pruned, lost with its machine, or never written."""


class TransportFull(TransportError):
    """The transport has no room for a part."""


class TransportLost(TransportError, ConnectionError):
    """The transport did not answer within the bounded time of retries."""


class DeadlineExceeded(TransportError, TimeoutError):
    """A call did not finish in the time given to it."""
