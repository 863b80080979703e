"""Check of what moves the weights, where that is files or a store."""

import secrets
from collections.abc import Iterator

from asyncrl.config import Config
from asyncrl.doctor.finding import Finding
from weightsync import open_transport
from weightsync.errors import WeightsyncError
from weightsync.log.records import Upload
from weightsync.transport.base import part_key, upload_prefix
from weightsync.versions import ORIGIN

DEADLINE_S = 10.0
_NAME = "weights directory"


def check_weights(config: Config) -> Iterator[Finding]:
    """A part of this machine's is put, read and removed again."""
    if config.weightsync.moves_by != "directory":
        return
    prefix = upload_prefix(config.run.name, Upload(ORIGIN, ORIGIN, f"doctor{secrets.token_hex(4)}", "", ()))
    key, blob = part_key(prefix, 0, 0), secrets.token_bytes(1000)
    target = bytearray(len(blob))
    try:
        transport = open_transport(config.weightsync, "", config.run.name)
        transport.put_part(key, [memoryview(blob)], deadline_s=DEADLINE_S)
        transport.get_part_into(key, memoryview(target), deadline_s=DEADLINE_S)
        transport.delete(prefix)
        transport.close()
    except (WeightsyncError, OSError) as error:
        yield Finding(_NAME, False, str(error), "See weightsync.directory; both clusters need the same one.")
        return
    same = target == blob
    detail = "a part can be put, read and removed" if same else "a part came back with other bytes"
    yield Finding(_NAME, same, detail, "" if same else "Check the storage behind weightsync.directory.")
