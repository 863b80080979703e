"""How reader and part server prove to each other that they have the key and the run in common. No I/O.

Each side shows a nonce and a proof: HMAC-SHA-256 over both nonces and who speaks, with a secret made of weightsync.key
and the run's name. The secret itself never travels, no proof can be shown twice or turned around, and the two channels
that follow are sealed with keys of this connection alone. Without a key the run's name is all that is proved.
"""

import hmac
import secrets
from typing import Any

from weightsync.errors import TransportError
from weightsync.transport.tcp.frames import MAX_GREETING, BadFrame, Channel, frame, shown

MAGIC = "asyncrl weightsync parts"
PROTOCOL = 1
NONCE_BYTES = 32
_PROOF_BYTES = 32
_REFUSED = "refused"


def secret_of(key: bytes | None, run: str) -> bytes:
    """What both sides must have in common.

    Args:
        key: 32 bytes derived from weightsync.key; None if there is none.
        run: name of the run.
    """
    return hmac.digest(key or b"no key", b"asyncrl weightsync tcp 1: " + run.encode(), "sha256")


def new_nonce() -> bytes:
    """For one connection."""
    return secrets.token_bytes(NONCE_BYTES)


def hello(nonce: bytes) -> bytes:
    """The server's first frame."""
    return frame([MAGIC, PROTOCOL, nonce], MAX_GREETING)


def refusal(why: str) -> bytes:
    """Says why the connection ends."""
    return frame([_REFUSED, why], MAX_GREETING)


def nonce_of_hello(fields: list[Any], where: str) -> bytes:
    """The server's nonce.

    Raises:
        TransportError: the server refuses, or speaks another protocol. BadFrame: it is no part server.
    """
    _check_refusal(fields, where)
    match fields:
        case [str(magic), int(protocol), bytes(nonce)] if magic == MAGIC and len(nonce) == NONCE_BYTES:
            if protocol == PROTOCOL:
                return nonce
            raise TransportError(
                f"the part server at {where} speaks protocol {protocol}, this build {PROTOCOL}. Run the same asyncrl "
                "on both sides."
            )
    raise BadFrame(f"{where} is no part server of weightsync: it answers {shown(fields)}.")


def introduction(secret: bytes, server_nonce: bytes, reader_nonce: bytes) -> bytes:
    """The reader's frame."""
    return frame([reader_nonce, _proof(secret, b"reader", server_nonce, reader_nonce)], MAX_GREETING)


def nonce_of_reader(fields: list[Any], secret: bytes, server_nonce: bytes) -> bytes | None:
    """The reader's nonce; None if it does not have the secret. Raises BadFrame: no introduction."""
    match fields:
        case [bytes(nonce), bytes(proof)] if len(nonce) == NONCE_BYTES and len(proof) == _PROOF_BYTES:
            expected = _proof(secret, b"reader", server_nonce, nonce)
            return nonce if hmac.compare_digest(proof, expected) else None
    raise BadFrame(f"no introduction of a reader: {shown(fields)}.")


def welcome(secret: bytes, server_nonce: bytes, reader_nonce: bytes) -> bytes:
    """The server's second frame: its own proof."""
    return frame([_proof(secret, b"server", server_nonce, reader_nonce)], MAX_GREETING)


def check_welcome(fields: list[Any], secret: bytes, server_nonce: bytes, reader_nonce: bytes, where: str) -> None:
    """Raises TransportError: the server refuses us, or cannot prove that it has the secret."""
    _check_refusal(fields, where)
    match fields:
        case [bytes(proof)] if hmac.compare_digest(proof, _proof(secret, b"server", server_nonce, reader_nonce)):
            return
    raise TransportError(
        f"{where} did not prove that it has weightsync.key: its parts are not read. Somebody else may listen there; "
        "the trainer says its address again with its next version."
    )


def channels(secret: bytes, server_nonce: bytes, reader_nonce: bytes) -> tuple[Channel, Channel]:
    """(requests, answers) of one connection; each side seals one and opens the other."""
    session = hmac.digest(secret, b"session" + server_nonce + reader_nonce, "sha256")
    return (
        Channel(hmac.digest(session, b"requests", "sha256")),
        Channel(hmac.digest(session, b"answers", "sha256")),
    )


def _check_refusal(fields: list[Any], where: str) -> None:
    match fields:
        case ["refused", str(why)]:
            raise TransportError(f"the part server at {where} refuses: {why[:200]}")


def _proof(secret: bytes, who: bytes, server_nonce: bytes, reader_nonce: bytes) -> bytes:
    return hmac.digest(secret, who + server_nonce + reader_nonce, "sha256")
