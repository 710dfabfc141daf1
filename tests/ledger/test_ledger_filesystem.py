"""A ledger in a file lies on a local file system, and on no network's."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.base.errors import StateError
from pipeline.ledger.database import address
from pipeline.ledger.database.address import kind_of, require_local
from pipeline.ledger.store import create_ledger

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw,relatime shared:12 - proc proc rw
24 22 0:40 / /home rw,relatime shared:3 master:1 - nfs4 server:/home rw,vers=4.2
25 24 0:41 / /home/local\\040disk rw,relatime - xfs /dev/vdb rw
26 22 0:42 / /mnt rw - ext4 /dev/vdc rw
27 26 0:43 / /mnt rw - cifs //server/share rw
28 22 0:44 / /merged rw - overlay overlay rw,lowerdir=/a
29 22 0:45 / /cloud rw - fuse.rclone remote: rw
30 22 0:46 / /disk rw - fuseblk /dev/vdd rw
31 22 0:47 / /shared rw - 9p host rw
32 22 0:48 / /other rw - fuse.fuse-overlayfs fuse-overlayfs rw
33 22 0:49 / /strange rw - quux quux rw
34 22 0:50 / /memory rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "local"),
    [
        ("/var/ledger.sqlite", "ext4", True),
        ("/homestead/ledger.sqlite", "ext4", True),
        ("/home/me/ledger.sqlite", "nfs4", False),
        ("/home/local disk/ledger.sqlite", "xfs", True),
        ("/mnt/ledger.sqlite", "cifs", False),
        ("/merged/ledger.sqlite", "overlay", True),
        ("/cloud/ledger.sqlite", "fuse.rclone", False),
        ("/disk/ledger.sqlite", "fuseblk", True),
        ("/shared/ledger.sqlite", "9p", False),
        ("/other/ledger.sqlite", "fuse.fuse-overlayfs", True),
        ("/strange/ledger.sqlite", "quux", True),
        ("/memory/ledger.sqlite", "tmpfs", True),
    ],
)
def test_the_file_system_of_a_place_is_known_and_a_networks_refused(path: str, kind: str, local: bool) -> None:
    assert kind_of(Path(path), MOUNTS) == kind
    if local:
        require_local(Path(path), MOUNTS)
        return
    with pytest.raises(StateError, match=f"network file system \\({kind}\\)"):
        require_local(Path(path), MOUNTS)


def test_where_nothing_is_known_nothing_is_refused() -> None:
    for mounts in ("", "no such list", "1 2 3\n", "22 1 254:0 / /elsewhere rw - nfs server:/ rw\n"):
        assert kind_of(Path("/var/ledger.sqlite"), mounts) is None
        require_local(Path("/var/ledger.sqlite"), mounts)


def test_this_machines_own_list_says_what_the_kernel_says(tmp_path: Path) -> None:
    told = subprocess.run(["stat", "-f", "-c", "%T", "/proc"], capture_output=True, text=True, check=True).stdout
    mounts = Path("/proc/self/mountinfo").read_text()
    assert kind_of(Path("/proc/self/mountinfo"), mounts) == told.strip() == "proc"
    require_local(tmp_path.resolve() / "ledger.sqlite")


@pytest.fixture
def memory() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def test_a_ledger_on_a_real_file_system_in_memory_is_opened(memory: Path) -> None:
    assert kind_of(memory, Path("/proc/self/mountinfo").read_text()) == "tmpfs"
    assert create_ledger(str(memory / "state" / "ledger.sqlite")).verify()[0] == 0


def test_nothing_is_made_on_a_network_also_behind_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share = tmp_path / "share"
    share.mkdir()
    os.symlink(share, tmp_path / "link")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"{MOUNTS}35 22 0:51 / {share.resolve()} rw - nfs server:/ rw\n")
    monkeypatch.setattr(address, "_MOUNTS", mounts)
    for place in (share, tmp_path / "link"):
        with pytest.raises(StateError, match=r"network file system \(nfs\)"):
            create_ledger(str(place / "state" / "ledger.sqlite"))
    assert list(share.iterdir()) == []
    create_ledger(str(tmp_path / "state" / "ledger.sqlite"))
