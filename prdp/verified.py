"""Whether what was published is what its manifest says, and machine and ledger are well; keys that sign manifests.

Loads neither Arrow nor NumPy.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pipeline.base.errors import PlanError, arg
from pipeline.engines import ENGINES
from pipeline.publication.manifest import FRONT, named_signer, verify_release
from pipeline.storage.staging import MANIFEST
from prdp.declared import Arg, KeyFile, LocationLike, documented, location

if TYPE_CHECKING:
    from pipeline.publication.product.products import VerifiedProduct
    from pipeline.publication.signing import PublicKey

OF_MANIFEST = "the folder or URI that holds release.json, reconciled.json or product.json"


@documented
def verify(path: Annotated[LocationLike, Arg(OF_MANIFEST, "FOLDER")], *, key: KeyFile = None) -> Any:
    """Return what was verified: every file of the release is the one that its manifest names, and none is added.

    `path` may also hold reconciled tables, whose sums are checked too, or a product.

    StateError names the first file that is missing, changed or too many, or what is wrong with the signature. Without
    `key` it shows that the files fit the manifest, not who wrote the manifest: compare `ledger_head` with its
    publisher's.
    """
    folder, public = location(path, "FOLDER"), public_key(key)
    if not (folder / MANIFEST).is_file():
        if (folder / "reconciled.json").is_file():
            from pipeline.publication.reconciled_folder import verify_reconciled  # noqa: PLC0415 — SciPy

            return verify_reconciled(folder, public)
        if (folder / "product.json").is_file():
            return verify_product(path, key=key)
    return verify_release(folder, public)


def signature_note(path: LocationLike, key: str | os.PathLike[str] | None) -> list[str]:
    """Return who signed a folder's manifest, or that this was not checked, in lines for people."""
    folder, public = location(path, "FOLDER"), public_key(key)
    if public is not None:
        return [f"its manifest is signed by the key {public.fingerprint}"]
    names = (MANIFEST, "reconciled.json", "product.json")
    name = next((name for name in names if (folder / name).is_file()), MANIFEST)
    unchecked = named_signer(folder, name) is not None
    return ["it is signed, which was not checked: give --key PUBLIC, the publisher's public key"] * unchecked


def has_front_page(path: LocationLike) -> bool:
    """Whether a release's folder holds index.html, which its manifest does not name."""
    return (location(path, "FOLDER") / FRONT).is_file()


@documented
def create_key(
    path: Annotated[str | Path, Arg("the private key, a new file of mode 0600", "FILE", "file")],
) -> dict[str, str]:
    """Make a key that signs manifests; return key (its file, mode 0600), public (path.pub) and fingerprint.

    Keys that are there are never replaced.
    """
    from pipeline.publication.signing import PUBLIC_SUFFIX, create_key  # noqa: PLC0415 — cryptography

    made = create_key(Path(path))
    return {"key": str(path), "public": f"{path}{PUBLIC_SUFFIX}", "fingerprint": made.fingerprint}


@documented
def verify_product(
    path: Annotated[LocationLike, Arg("the folder or URI that holds product.json", "FOLDER")], *, key: KeyFile = None
) -> "VerifiedProduct":
    """Return what was verified of a product's folder: every file is the one that product.json names, and none is added.

    StateError names the first file that is missing, changed or too many, or what is wrong with the signature.
    """
    from pipeline.publication.product.products import verify_product  # noqa: PLC0415

    return verify_product(location(path, "product"), public_key(key))


def public_key(path: str | os.PathLike[str] | None) -> "PublicKey | None":
    """Return the key in a file; None without one."""
    if path is None:
        return None
    from pipeline.publication.signing import load_public_key  # noqa: PLC0415 — cryptography

    return load_public_key(Path(path))


# The machine that runs prdp, and its ledger.

Address = str | Path | None
ONLY = "look at the ledger alone, not at this machine"
WAITS = "how long a release may go no further"
HELD = "how long a release may be held"
METRICS = "with --ledger-only: write metrics for Prometheus there, as prdp release does"


@documented
def doctor(
    ledger: Annotated[
        Address, Arg("the ledger", "URL", option=True, default="the site's, or a file of the user's")
    ] = None,
    *,
    ledger_only: Annotated[bool, Arg(ONLY)] = False,
    staging: Annotated[Address, Arg("as of prdp release", "URI", default="those that the ledger knows")] = None,
    out: Annotated[Address, Arg("as of prdp release", "URI", default="that of the last release")] = None,
    engine: Annotated[
        str | None, Arg("the engine that must run", choices=list(ENGINES), default="what is set up")
    ] = None,
    longest: Annotated[float, Arg(WAITS, "HOURS", "above_zero")] = 1,
    longest_held: Annotated[float, Arg(HELD, "HOURS", "above_zero")] = 168,
    least_free: Annotated[float, Arg("what must be free on each disk", "GB", "above_zero")] = 1,
    metrics: Annotated[Address, Arg(METRICS, "PLACE")] = None,
) -> dict[str, Any]:
    """Return what is well with this machine and its ledger and what must be mended, as `prdp doctor --json`.

    It reads no microdata and writes nothing but metrics.

    Returns:
        well: whether nothing must be mended; findings, each with check, state ("good", "mend" or "not looked at"),
        what, and fix (None unless to be mended).
    """
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415 — import prdp stays light

    from pipeline.operations.doctor import Asked  # noqa: PLC0415
    from pipeline.operations.doctor import doctor as examined  # noqa: PLC0415
    from pipeline.operations.ledger_health import as_document  # noqa: PLC0415
    from pipeline.storage.paths import locate  # noqa: PLC0415
    from prdp.ledgers import opened  # noqa: PLC0415

    if engine not in (None, *ENGINES):
        raise PlanError(f"{arg('engine', engine)}: must be {' or '.join(ENGINES)}")
    named = None if ledger is None else str(ledger)
    if ledger_only:
        return opened(named, None, first_use=False).health(longest, longest_held, least_free, metrics)
    if metrics is not None:
        raise PlanError(f"{arg('metrics')}: it goes with {arg('ledger_only')}")
    staged = None if staging is None else locate(str(staging), what=arg("staging")).resolve()
    written = None if out is None else locate(str(out), what=arg("out"))
    hours = timedelta(hours=longest), timedelta(hours=longest_held)
    return as_document(examined(datetime.now(UTC), Asked(named, staged, written, engine, least_free, *hours)))
