"""The digest of prdp's own modules: workers whose digest is not the driver's are refused."""

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable

from pipeline.base.errors import PrdpError

PACKAGES = ("udfs", "pipeline")
LIBRARIES = ("cryptography", "mpmath", "numpy", "pandas", "pyarrow")  # they shape the bytes of a table


@cache
def code_digest() -> str:
    """Return the digest of all Python files of `udfs` and `pipeline` as imported here, and of LIBRARIES' versions.

    Raises PrdpError where one of these common names belongs to another program.
    """
    digest = hashlib.sha256()
    for library in LIBRARIES:
        digest.update(f"{library} {version(library)}\0".encode())
    for package in PACKAGES:
        root = files(package)
        if not root.joinpath("py.typed").is_file():
            raise PrdpError(f"the package {package} found on the path is not prdp's: correct the Python path")
        for name, file in sorted(_sources(root, package)):
            digest.update(f"{name}\0{len(file)}\0".encode() + file)
    return "sha256:" + digest.hexdigest()


def _sources(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = f"{prefix}/{entry.name}"
        if entry.is_dir():
            yield from _sources(entry, name)
        elif entry.name.endswith(".py"):
            yield name, entry.read_bytes()
