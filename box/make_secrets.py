"""Makes the box's secrets, each a file of a folder of mode 0700: python box/make_secrets.py FOLDER.

What is there is kept, so that a ledger outlives a restart. All may read the files, because Docker hands them to a
container's own user with the mode they have here: it is the folder that keeps others out.
"""

import os
import secrets
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

WORDS = (
    *("spark_secret", "ledger_owner", "ledger_releaser", "ledger_officer", "ledger_backup"),
    *("database_password", "airflow_password", "airflow_session", "airflow_jwt"),
)
SERVERS = ("ledger", "database", "dask")  # all of a Dask cluster have its one certificate
DAYS = 825


def make(folder: Path) -> None:
    """Make what is missing."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name in WORDS:
        if not (folder / name).exists():
            _write(folder / name, secrets.token_hex(32).encode())
    if not (folder / "airflow_fernet").exists():
        _write(folder / "airflow_fernet", Fernet.generate_key())
    for server in SERVERS:
        if not all((folder / f"{server}_{part}").exists() for part in ("ca", "key", "certificate")):
            authority, certificate, key = _certificates(server)
            _write(folder / f"{server}_ca", authority)
            _write(folder / f"{server}_key", key)
            _write(folder / f"{server}_certificate", certificate)


def _write(path: Path, content: bytes) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.chmod(0o444)
    os.replace(part, path)


def _certificates(server: str) -> tuple[bytes, bytes, bytes]:
    """Return an authority's certificate, whose key is thrown away, and the one certificate it signed, with its key."""
    root, leaf = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "prdp box")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, server)])
    now = datetime.now(UTC)
    window = (now - timedelta(hours=1), now + timedelta(days=DAYS))

    def signed(name: x509.Name, key: ec.EllipticCurvePublicKey, extensions: list[x509.ExtensionType]) -> bytes:
        builder = x509.CertificateBuilder(issuer, name, key, x509.random_serial_number(), *window)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=True)
        return builder.sign(root, SHA256()).public_bytes(Encoding.PEM)

    names = x509.SubjectAlternativeName([x509.DNSName(server)])
    authority = signed(issuer, root.public_key(), [x509.BasicConstraints(ca=True, path_length=0)])
    certificate = signed(subject, leaf.public_key(), [x509.BasicConstraints(ca=False, path_length=None), names])
    return authority, certificate, leaf.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


if __name__ == "__main__":
    make(Path(sys.argv[1]))
