"""Whether a file system keeps SQLite's locks: those of a network do not reliably, and two writers ruin the file."""

import re
from pathlib import Path

from pipeline.errors import StateError

_MOUNTS = Path("/proc/self/mountinfo")

# As Linux names them. Others are taken for local, unknown ones too; so is all where there is no such list.
_OF_A_NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs"}
    | {"prl_fs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "vmhgfs"}
)
_OF_A_NETWORK_BY_FUSE = frozenset(
    {"afp", "beegfs", "blobfuse", "blobfuse2", "ceph", "ceph-fuse", "cifs", "curlftpfs", "davfs", "davfs2", "gcsfuse"}
    | {"glusterfs", "goofys", "juicefs", "mfs", "moosefs", "mount-s3", "nfs", "rclone", "s3fs", "seaweedfs", "smb"}
    | {"smbnetfs", "sshfs", "vmhgfs-fuse"}
)


def require_local(path: Path, mounts: str | None = None) -> None:
    """Raise StateError where `path`, absolute and without links, lies on a file system of a network.

    `mounts` is the text of proc(5)'s mountinfo; None: that of this process.
    """
    kind = kind_of(path, _read() if mounts is None else mounts)
    if kind is not None and of_a_network(kind):
        raise StateError(
            f"the ledger {path} would lie on a network file system ({kind}), whose locks do not keep a budget: put "
            "it on a local disk, or use a PostgreSQL server"
        )


def kind_of(path: Path, mounts: str) -> str | None:
    """Return the type of the file system that holds `path`, as `mounts` tells it; None where it does not."""
    found: tuple[int, str] | None = None
    for line in mounts.splitlines():
        place, _, source = line.partition(" - ")
        fields, kind = place.split(" "), source.partition(" ")[0]
        if len(fields) < 6 or not kind:
            continue
        point = Path(_plain(fields[4]))
        depth = len(point.parts)
        # The deepest counts, and of those at one point the last, which hides the others.
        if path.is_relative_to(point) and (found is None or depth >= found[0]):
            found = depth, kind
    return None if found is None else found[1]


def of_a_network(kind: str) -> bool:
    """Whether files of a file system of this type lie behind a network, or on another machine's system."""
    family, _, helper = kind.partition(".")
    return family in _OF_A_NETWORK or (family in ("fuse", "fuseblk") and helper in _OF_A_NETWORK_BY_FUSE)


def _read() -> str:
    try:
        return _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return ""


def _plain(point: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point)
