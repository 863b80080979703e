"""Parts straight from the memory of the rank that made them, over connections whose ends prove who they are."""

from weightsync.transport.tcp.transport import TcpTransport

__all__ = ["TcpTransport"]
