"""TLS in front of a PostgreSQL server that was built without it: certificates, and a proxy that ends the handshake."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def certificates(host: str, end: datetime | None = None) -> tuple[bytes, bytes, bytes]:
    """The authority's certificate, and a certificate and key for a server called `host`, as PEM; None: for a day."""
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    names = {name: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("authority", host)}
    now = datetime.now(UTC)

    known = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    others = "digital_signature content_commitment key_encipherment data_encipherment key_agreement encipher_only"
    uses = dict.fromkeys(f"{others} decipher_only".split(), False) | {"key_cert_sign": True, "crl_sign": True}

    def signed(name: str, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType) -> bytes:
        builder = x509.CertificateBuilder(issuer_name=names["authority"], subject_name=names[name])
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(end or now + timedelta(days=1))
        builder = builder.add_extension(known, critical=False)  # which Python asks for since 3.13, as what follows
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=True)
        return builder.sign(authority, SHA256()).public_bytes(Encoding.PEM)

    root = signed("authority", authority, x509.BasicConstraints(ca=True, path_length=None), x509.KeyUsage(**uses))
    leaf = signed(host, server, x509.SubjectAlternativeName([x509.DNSName(host)]))
    return root, leaf, server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@contextmanager
def tls_in_front_of(port: int, chain: Path, key: Path) -> Iterator[int]:
    """Yield a port of loopback that speaks PostgreSQL's TLS and passes what it decrypts to `port`.

    Each connection reads the files anew.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=_serve, args=(server, port, chain, key), daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def _serve(server: socket.socket, port: int, chain: Path, key: Path) -> None:
    with suppress(OSError):
        while True:
            client, _ = server.accept()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(chain, key)
            Thread(target=_pass_on, args=(client, port, context), daemon=True).start()


def _pass_on(client: socket.socket, port: int, context: ssl.SSLContext) -> None:
    with client, suppress(OSError):
        client.recv(8)  # SSLRequest
        client.sendall(b"S")
        with (
            context.wrap_socket(client, server_side=True) as inside,
            socket.create_connection(("127.0.0.1", port)) as behind,
        ):
            Thread(target=_pump, args=(behind, inside), daemon=True).start()
            _pump(inside, behind)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
