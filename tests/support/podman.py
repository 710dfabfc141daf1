"""Containers for a drill where no Docker engine runs: podman, kept to one folder, on a machine without systemd.

Needs root and Debian's packages of PACKAGES. Images are built from a base that debootstrap makes.
Everything lies below one folder, which may be kept, so that a second drill builds little anew.
"""

import os
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGES = (
    *("podman", "buildah", "crun", "netavark", "aardvark-dns", "uidmap", "fuse-overlayfs", "slirp4netns"),
    *("iptables", "catatonit", "debootstrap"),
)
PROGRAMS = ("podman", "crun", "iptables", "debootstrap", "unshare", "nsenter")
ENGINE_STATE = ("/run/containers", "/run/libpod", "/run/netns")  # where the engine keeps state whatever its settings
BASE = "localhost/base:bookworm"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
CONTAINERS = """[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
cgroups = "disabled"
[engine]
cgroup_manager = "cgroupfs"
runtime = "crun"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""
STORAGE = """[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""
COMPOSE = """#!/bin/sh
export CONTAINERS_CONF={folder}/containers.conf CONTAINERS_STORAGE_CONF={folder}/storage.conf
exec nsenter --target {process} --mount --wd="$PWD" {compose} --podman-build-args \
'--network=host --isolation=chroot -v {certificates}:{certificates}:ro -v {folder}/pip.conf:/etc/pip.conf:ro' "$@"
"""


def why_not() -> str | None:
    """Say why this machine cannot run containers by podman; None where it can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "containers by podman need root here"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed: apt-get install {' '.join(PACKAGES)}"
    if not CERTIFICATES.is_file():
        return f"{CERTIFICATES} is missing: apt-get install ca-certificates"
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return None if probe.returncode == 0 else "this machine gives no mount namespaces"


@contextmanager
def podman(folder: Path) -> Iterator[Path]:
    """Yield a program that is used as `docker compose` is; BASE is there. `folder` is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "containers.conf").write_text(CONTAINERS.format(folder=folder))
    (folder / "storage.conf").write_text(STORAGE.format(folder=folder))
    (folder / "pip.conf").write_text(f"[global]\ncert = {CERTIFICATES}\ntimeout = 180\n")
    # One mount namespace for all commands, without the control groups of systemd, which is not there to keep them.
    namespace = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sleep", "infinity"])
    try:
        inside = ["nsenter", "--target", str(namespace.pid), "--mount"]
        unified = Path("/sys/fs/cgroup/unified")
        while _mounts(namespace.pid) == _mounts(os.getpid()):
            assert namespace.poll() is None, "no mount namespace"
        if unified.is_dir():
            subprocess.run([*inside, "umount", unified], check=False, capture_output=True)
        for place in ENGINE_STATE:  # a killed drill's name server and networks are not this one's
            subprocess.run([*inside, "mkdir", "--parents", place], check=True)
            subprocess.run([*inside, "mount", "-t", "tmpfs", "drill", place], check=True)
        _make_base(inside, folder)
        yield _script(folder, namespace.pid)
    finally:
        namespace.send_signal(signal.SIGKILL)
        namespace.wait()


def _mounts(process: int) -> str:
    return os.readlink(f"/proc/{process}/ns/mnt")


def _script(folder: Path, process: int) -> Path:
    compose = shutil.which("podman-compose", path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]))
    assert compose, "podman-compose is not installed: make setup"
    script = folder / "compose"
    script.write_text(COMPOSE.format(folder=folder, process=process, compose=compose, certificates=CERTIFICATES))
    script.chmod(0o755)
    return script


def _make_base(inside: list[str], folder: Path) -> None:
    """Make the image BASE where it is not there: Debian with Python, as python:3.11-slim-bookworm is."""
    environment = os.environ | {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    if subprocess.run([*inside, "podman", "image", "exists", BASE], env=environment, check=False).returncode == 0:
        return
    root = folder / "root"
    shutil.rmtree(root, ignore_errors=True)
    wanted = "--include=python3,python3-venv,ca-certificates"
    subprocess.run(["debootstrap", "--variant=minbase", wanted, "bookworm", root], check=True, capture_output=True)
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as packed:
        subprocess.run([*inside, "podman", "import", "-", BASE], stdin=packed.stdout, env=environment, check=True)
    shutil.rmtree(root)
