"""Certificates for tests of TLS, made by the openssl program: an authority, and what it signs."""

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

OPENSSL = shutil.which("openssl")


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates. `cert` is what those need who trust it."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        made = Certificate(directory / f"{name}.pem", directory / f"{name}.key")
        _run("req", "-x509", *_NEW_KEY, "-keyout", made.key, "-out", made.cert, "-days", "30", "-subj", f"/CN={name}")
        self.cert, self._key = made.cert, made.key

    def sign(self, name: str, subject: str) -> Certificate:
        """A certificate for a subject alternative name such as IP:127.0.0.1 or DNS:host."""
        made = Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        request, extra = self._directory / f"{name}.csr", self._directory / f"{name}.ext"
        extra.write_text(f"subjectAltName={subject}\n")
        _run("req", *_NEW_KEY, "-keyout", made.key, "-out", request, "-subj", f"/CN={name}")
        signed_by = ("-CA", self.cert, "-CAkey", self._key, "-CAcreateserial", "-extfile", extra)
        _run("x509", "-req", "-in", request, "-out", made.cert, "-days", "30", *signed_by)
        return made


def server_side(certificate: Certificate, clients_of: Authority | None = None) -> ssl.SSLContext:
    """What a listener shows; with `clients_of`, it asks for a client's certificate of that authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients_of.cert)
    return context


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _run(*arguments: str | Path) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *map(str, arguments)], check=True, capture_output=True, timeout=30)
