"""Manifests signed with a key of the site's, so that outsiders know who published a release.

A signature is Ed25519 (RFC 8032) over the exact bytes of a manifest: release.json, and reconciled.json or product.json
where that is asked for. It draws nothing: a manifest has one signature by a key, however often it is made.
"""

import base64
import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from pipeline.base.canonical import readable_json
from pipeline.base.errors import PlanError, StateError, file_errors
from pipeline.base.plain import plain_json
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.paths import LARGEST_TEXT, PUBLIC_MARKS, open_input, require_not_in
from pipeline.storage.staging import MANIFEST, SIGNED

PUBLIC_SUFFIX = ".pub"
_LARGEST = 10_000  # bytes of a file of a key
_DIGEST = 64  # hexadecimal digits of a key's SHA-256


@dataclass(frozen=True)
class PublicKey:
    """The key by which outsiders check signatures; `fingerprint`: the SHA-256 of its DER form, in hexadecimal."""

    _key: Ed25519PublicKey = field(repr=False)

    @property
    def pem(self) -> bytes:
        """The key as the text of its file."""
        return self._key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    @property
    def fingerprint(self) -> str:
        """What names the key."""
        der = self._key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return hashlib.sha256(der).hexdigest()

    def require_signed(self, folder: Location, manifest: bytes, name: str = MANIFEST) -> None:
        """Return if the signature in `folder` is this key's, over the bytes `manifest` of the file `name`.

        Raises StateError that says whether it is missing, no signature, by another key, or of other bytes.
        """
        file = folder / f"{name}{SIGNED}"
        try:
            data = file.read()
            named, signature = _parts(data)
        except FileNotFoundError:
            raise StateError(f"{file} is not there: {name} is not signed, or its signature was removed") from None
        except OSError as error:
            raise StateError(f"{file} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise StateError(f"{file} is no signature of prdp: it was changed or is not one") from None
        if named != self.fingerprint:
            raise StateError(f"{file} is by another key, and not by {self.fingerprint}")
        try:
            self._key.verify(signature, manifest)
        except InvalidSignature:
            raise StateError(
                f"{file} is wrong: {name} or the signature was changed, or the signature is another manifest's"
            ) from None
        if data != self.signature_file(signature, name):  # no word beside the signature may say anything else
            raise StateError(f"{file} was changed: it is not what prdp writes around its signature")

    def signature_file(self, signature: bytes, name: str) -> bytes:
        """Return the contents of `name`.sig with a signature by this key; no other contents are accepted."""
        signed = base64.b64encode(signature).decode()
        about = {"algorithm": "Ed25519", "signs": name, "key": self.fingerprint, "signature": signed}
        return readable_json(about).encode()


@dataclass(frozen=True)
class SigningKey:
    """The key with which a site signs; it shows nothing of itself."""

    _key: Ed25519PrivateKey = field(repr=False)

    @property
    def public(self) -> PublicKey:
        """The key that outsiders get."""
        return PublicKey(self._key.public_key())

    def signature(self, manifest: bytes, name: str = MANIFEST) -> bytes:
        """Return the contents of `name`.sig for a manifest of this name and these bytes, always the same."""
        return self.public.signature_file(self._key.sign(manifest), name)


def create_key(path: Path) -> PublicKey:
    """Make a key: the private one in the new file `path`, mode 0600, the public one in `path`.pub; return the latter.

    Raises StateError where one of the files is there or they would lie among published ones, PlanError where they
    cannot be written.
    """
    require_not_in(PUBLIC_MARKS, path, "FILE")
    private, public = LocalPath(path), LocalPath(path.with_name(path.name + PUBLIC_SUFFIX))
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    made = SigningKey(key).public
    with file_errors(f"{path}: the key cannot be written (", "); give a file in another folder", PlanError):
        for file, data in ((private, secret), (public, made.pem)):
            if public.exists() or not file.create(data, str(os.getpid()), private=file == private):
                raise StateError(
                    f"{public if public.exists() else file} is there already: keys are not replaced; give a new file"
                )
    return made


def load_signing_key(path: Path) -> SigningKey:
    """Return the private key in a file; PlanError where it cannot be read, is none, or others have access to it."""
    data, mode = _read(path, "the signing key")
    if mode & 0o077:
        raise PlanError(
            f"the signing key {path}: other users have access to it (mode {mode:04o}): chmod 600 it, or make a new key "
            "where somebody may have read it"
        )
    try:
        key = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise PlanError(
            f"the signing key {path} is no private Ed25519 key without passphrase: run prdp ledger admin keys create"
        )
    return SigningKey(key)


def load_public_key(path: Path) -> PublicKey:
    """Return the public key in a file; PlanError where it cannot be read or is none."""
    data, _ = _read(path, "the public key")
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        private = b"PRIVATE KEY" in data
        raise PlanError(
            f"the public key {path} "
            + (
                f"is a private key: give the public one, {path}{PUBLIC_SUFFIX}"
                if private
                else "is no Ed25519 key in PEM"
            )
        )
    return PublicKey(key)


def _read(path: Path, what: str) -> tuple[bytes, int]:
    with file_errors(f"{what} {path} cannot be read: ", kind=PlanError), open_input(path, LARGEST_TEXT) as file:
        return file.read(_LARGEST), stat.S_IMODE(os.fstat(file.fileno()).st_mode)


def _parts(data: bytes) -> tuple[str, bytes]:
    """Return what a signature says: the fingerprint of its key, and itself; raises as json and base64 do."""
    about = plain_json(data)
    named = about["key"]
    if len(named) != _DIGEST or not set(named) <= set("0123456789abcdef"):
        raise ValueError
    return cast(str, named), base64.b64decode(about["signature"], validate=True)
