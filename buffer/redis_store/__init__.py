"""The only door to redis-py: connections to a Redis or Valkey server, a primary behind Sentinel, or a Redis Cluster.

server       commands with bounded retry; what `script_store` and `payloads.redis` need of a server
nodes        which server takes a command: one (nodes), sentinel, cluster
connections  a bounded pool of connections to one server
faults       what may pass by itself, and what a person must mend
address      the URL: its forms, its options, and how it is shown without secrets

Everything that could repeat, wait or time out is set here: redis-py's own retries are off (see `server`), its clients
and pools are not used (see `connections`, `sentinel`, `cluster`).
"""

from buffer.redis_store.server import RedisServer

__all__ = ["RedisServer"]
