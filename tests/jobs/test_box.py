"""The cluster in a box is safe as it is written: linted, pinned, without root, open ports or secrets in the open.

Whether it runs is told by tests/jobs/test_box_drill.py, where containers can.
"""

import os
import shutil
import ssl
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pipeline.base.errors import PlanError
from pipeline.engines.spark_session import require_safe
from tests.support.box import faults, of_dockerfile

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()

BROKEN_COMPOSE = {
    "root": ('user: "10001:10001"', 'user: "0:0"'),
    "root by default": ('  user: "10002:10002"\n', ""),
    "root by name": ('user: "10001:10001"', "user: root"),
    "every address": ('"127.0.0.1:${AIRFLOW_PORT:-8080}:8080"', '"${AIRFLOW_PORT:-8080}:8080"'),
    "0.0.0.0": ('"127.0.0.1:${AIRFLOW_PORT:-8080}:8080"', '"0.0.0.0:8080:8080"'),
    "an engine's UI": ("    hostname: worker1\n", '    hostname: worker1\n    ports: ["127.0.0.1:8081:8081"]\n'),
    "a password": ("PGUSER: owner", "PGUSER: owner, PGPASSWORD: x"),
    "a password in a connection": ('"port": 7077', '"password": "x"'),
    "a password in an address": ("PGUSER: officer", "LEDGER: 'postgresql://officer:x@ledger/ledger'"),
    "a secret of the environment": ('{file: "${PRDP_SECRETS:-.work/box/secrets}/ledger_key"}', "{environment: KEY}"),
    "latest": ("localhost/prdp-postgres:0.1.0", "localhost/prdp-postgres:latest"),
    "no tag": ("localhost/prdp-postgres:0.1.0", "localhost/prdp-postgres"),
    "capabilities": ("cap_drop: [ALL]", "cap_drop: []"),
    "privileged": ("    hostname: master\n", "    hostname: master\n    privileged: true\n"),
    "new privileges": ('["no-new-privileges:true"]', "[]"),
    "the host's network": ("network_mode: none", "network_mode: host"),
    "the way out": ("  spark: {internal: true}", "  spark: {}"),
    "a worker that leaves": ("  networks: [spark]\n  secrets", "  networks: [spark, door]\n  secrets"),
    "a worker at the ledger": ("  networks: [spark]\n  secrets", "  networks: [spark, ledger]\n  secrets"),
    "a scheduler at the ledger": ("    networks: [dask]\n", "    networks: [dask, ledger]\n"),
    "a ledger at a cluster": ("    networks: [ledger]\n    secrets: [ledger_c", "    networks: [ledger, spark]\n    secrets: [ledger_c"),  # noqa: E501
    "given up": ("restart: unless-stopped", "restart: on-failure"),
    "a root that can be written": ("read_only: true", "read_only: false"),
    "no limit of memory": ("  mem_limit: 512m\n", ""),
    "no limit of processors": ("  cpus: 1\n", ""),
    "no limit of processes": ("  pids_limit: 256\n", ""),
    "a log for ever": ("options: {max-size: 10m}", "options: {}"),
    "a ledger for all": ('volumes: ["backups:/var/lib/backups"]', 'volumes: ["ledger:/var/lib/ledger"]'),
    "backups for all": ('volumes: ["ledger:/var/lib/ledger"]', 'volumes: ["backups:/var/lib/backups"]'),
    "microdata that change": ("data:/srv/prdp/data:ro", "data:/srv/prdp/data"),
    "microdata for officers": (
        'volumes: ["staging:/srv/prdp/staging", "releases',
        'volumes: ["data:/srv/prdp/data:ro", "staging:/srv/prdp/staging", "releases',
    ),
    "staging for all": ('volumes: ["data:/srv/prdp/data"]', 'volumes: ["staging:/srv/prdp/staging"]'),
    "the engine's socket": ('volumes: ["ledger:/var/lib/ledger"]', 'volumes: ["/run/docker.sock:/run/docker.sock"]'),
    "no check": ("    healthcheck: *reachable\n", ""),
}  # fmt: skip

BROKEN_DOCKERFILE = {
    "root": ("USER 10002:10002\n", ""),
    "root again": ("USER 10001:10001\nCMD", "CMD"),
    "a stage of none": ("AS airflow-libraries", "AS other"),
    "latest": ("BASE=python:3.11-slim-bookworm", "BASE=python:latest"),
    "another base": ("FROM ${BASE} AS postgres", "FROM postgres AS postgres"),
    "fetched": ("COPY box/site.yaml", "ADD https://example.org/site.yaml"),
}


def program(name: str) -> str:
    """The path of a tool of the extra `dev`."""
    found = shutil.which(name, path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]))
    assert found, f"{name} is not installed: make setup"
    return found


def composed(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Have podman-compose read a compose file; no engine is needed, though it asks one for its version before."""
    (folder / "docker-compose.yml").write_text(text)
    engine = folder / "podman"
    engine.write_text("#!/bin/sh\necho podman version 4.3.1\n")
    engine.chmod(0o755)
    command = [program("podman-compose"), "--podman-path", str(engine), "--file", str(folder / "docker-compose.yml")]
    return subprocess.run([*command, "config"], capture_output=True, text=True, check=False, cwd=folder)


def linted(text: str) -> list[str]:
    """What hadolint finds, one line each."""
    command = [program("hadolint"), "--no-color", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False).stdout.splitlines()


def replaced(text: str, change: tuple[str, str]) -> str:
    assert change[0] in text
    return text.replace(*change)


def test_compose_file_is_safe() -> None:
    assert faults(COMPOSE) == []


@pytest.mark.parametrize("change", BROKEN_COMPOSE.values(), ids=BROKEN_COMPOSE)
def test_compose_file_that_is_not_safe_is_seen(change: tuple[str, str]) -> None:
    assert faults(replaced(COMPOSE, change)) != []


def test_compose_file_is_read_whole(tmp_path: Path) -> None:
    done = composed(COMPOSE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["services"].keys() == yaml.safe_load(COMPOSE)["services"].keys() - {
        "submit", "officer", "generate"}  # fmt: skip


@pytest.mark.parametrize("change", [("networks: [ledger]", "networks: [elsewhere]"), ("services:", "services: [")])
def test_compose_file_that_cannot_be_read_is_seen(change: tuple[str, str], tmp_path: Path) -> None:
    done = composed(replaced(COMPOSE, change), tmp_path)
    assert done.returncode != 0
    assert "podman` installed" not in done.stderr  # it is the file that cannot be read


def test_dockerfile_is_clean() -> None:
    assert linted(DOCKERFILE) == []
    assert of_dockerfile(DOCKERFILE) == []


@pytest.mark.parametrize("change", BROKEN_DOCKERFILE.values(), ids=BROKEN_DOCKERFILE)
def test_dockerfile_that_is_not_safe_is_seen(change: tuple[str, str]) -> None:
    assert of_dockerfile(replaced(DOCKERFILE, change)) != []


@pytest.mark.parametrize("change", [("postgresql-15=15.*", "postgresql-15"), ("USER 10002:10002", "USER root"),
                                    ("    AIRFLOW_HOME", "    AIRFLOW_PASSWORD=x AIRFLOW_HOME")])  # fmt: skip
def test_hadolint_sees(change: tuple[str, str]) -> None:
    assert linted(replaced(DOCKERFILE, change)) != []


def made(target: str, folder: Path, engine: str, *variables: str) -> subprocess.CompletedProcess[str]:
    """Run a target of the Makefile where `docker` and `podman` are the given script."""
    for name in ("docker", "podman"):
        (folder / name).write_text(f"#!/bin/sh\n{engine}\n")
        (folder / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "COMPOSE" and "MAKE" not in name}
    environment["PATH"] = f"{folder}:{environment['PATH']}"
    return subprocess.run(
        ["make", "-f", ROOT / "Makefile", target, *variables], env=environment,
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip


@pytest.mark.parametrize("target", ["up", "demo-cluster", "down"])
def test_without_an_engine_the_box_says_so(target: str, tmp_path: Path) -> None:
    done = made(target, tmp_path, engine="exit 1")
    assert done.returncode != 0
    assert done.stdout == ""
    error, makes_own = done.stderr.splitlines()
    assert error.startswith("error: no container engine runs here: start Docker")
    assert makes_own.startswith("make: ***")
    assert not (tmp_path / ".venv").exists()  # nothing was installed first


def test_with_an_engine_the_box_is_stopped(tmp_path: Path) -> None:
    done = made("down", tmp_path, engine="")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "docker compose --profile people down\n")


def test_podman_without_the_program_of_its_init_says_so(tmp_path: Path) -> None:
    """The init is looked for where podman looks for it."""
    init = tmp_path / "libexec" / "own-init"
    podman = (f"COMPOSE={tmp_path}/podman", f"INIT={init.name}", f"INIT_HOMES={init.parent}")
    error, makes_own = (done := made("down", tmp_path, "", *podman)).stderr.splitlines()
    assert error == "error: podman needs own-init for a container's first process (init: true): install own-init"
    assert makes_own.startswith("make: ***")
    assert done.returncode != 0
    init.parent.mkdir()
    init.symlink_to("/bin/true")
    assert made("down", tmp_path, "", *podman).returncode == 0
    assert "\nINIT ?= catatonit\n" in (ROOT / "Makefile").read_text()


def test_nothing_enters_an_image_but_what_is_named() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    let_in = {line[1:] for line in rules if line[0] == "!"}
    copied = {
        source.split("/")[0]
        for line in DOCKERFILE.splitlines() if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }  # fmt: skip
    assert let_in == copied


def spark_settings() -> dict[str, str]:
    lines = [line for path in ("conf/spark/standalone.conf", "box/spark.conf")
             for line in (ROOT / path).read_text().splitlines()]  # fmt: skip
    return dict(line.split(None, 1) for line in lines if line and line[0] != "#")


def test_spark_is_as_prdp_demands() -> None:
    settings = spark_settings()
    require_safe(settings.get)
    assert settings["spark.master"] == "spark://master:7077"
    assert "spark.authenticate.secret" not in settings
    for key in ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"):
        with pytest.raises(PlanError, match=key):
            require_safe({**settings, key: "false"}.get)


def test_spark_logs_no_counts() -> None:
    lines = (ROOT / "conf" / "spark" / "log4j2.properties").read_text().splitlines()
    settings = dict(line.split(" = ", 1) for line in lines if line and line[0] != "#")
    assert settings["rootLogger.level"] == "off"
    assert settings["rootLogger.appenderRef.console.ref"] == "console"  # without one Spark takes its own defaults
    loud = {value for key, value in settings.items() if key.startswith("logger.") and key.endswith(".name")}
    assert loud == {"org.apache.spark.deploy.master", "org.apache.spark.deploy.worker"}


def make_secrets(folder: Path) -> dict[str, bytes]:
    subprocess.run([sys.executable, ROOT / "box" / "make_secrets.py", folder], check=True)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_secrets_are_made_once_and_kept_from_others(tmp_path: Path) -> None:
    made = make_secrets(tmp_path / "secrets")
    assert set(made) == set(yaml.safe_load(COMPOSE)["secrets"])
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert make_secrets(tmp_path / "secrets") == made
    (tmp_path / "secrets" / "dask_ca").unlink()  # as when making them was interrupted: no part of another set stays
    again = make_secrets(tmp_path / "secrets")
    assert {name for name in made if again[name] != made[name]} == {"dask_ca", "dask_certificate", "dask_key"}
    other = make_secrets(tmp_path / "others")
    assert not set(made.values()) & set(other.values())


@pytest.mark.parametrize(("name", "host", "works"), [("ledger", "ledger", True), ("ledger", "elsewhere", False),
                                                     ("ledger", "database", False), ("database", "database", True),
                                                     ("dask", "ledger", False)])  # fmt: skip
def test_certificate_is_one_servers_alone(name: str, host: str, works: bool, tmp_path: Path) -> None:
    make_secrets(tmp_path / "secrets")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "secrets" / f"{name}_certificate", tmp_path / "secrets" / f"{name}_key")
    client = ssl.create_default_context(cafile=tmp_path / "secrets" / f"{name}_ca")
    shake = handshake(client, server, host)
    if works:
        shake()
    else:
        with pytest.raises(ssl.SSLCertVerificationError):
            shake()


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> Callable[[], None]:
    """A TLS handshake between two ends in memory."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(back, there, server_hostname=host), server.wrap_bio(there, back, server_side=True))

    def shake() -> None:
        waiting = list(ends)
        while waiting:
            for end in list(waiting):
                try:
                    end.do_handshake()
                    waiting.remove(end)
                except ssl.SSLWantReadError:
                    continue

    return shake
