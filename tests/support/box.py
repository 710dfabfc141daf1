"""What must hold of the cluster in a box: rules on docker-compose.yml and on the Dockerfile, as lists of faults."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

WORKERS = {"worker1", "worker2", "dask-worker1", "dask-worker2"}
LONG_RUNNING = {"master", "dask-scheduler", "ledger", "backup", "database", "airflow"} | WORKERS
CLUSTERS, DRIVERS = {"spark", "dask"}, {"submit", "airflow"}
LIMITS = {"mem_limit", "cpus", "pids_limit"}
BUILDERS = {"installer", "libraries", "code", "runtime", "airflow-libraries"}  # stages that no service runs
SECRET_NAME = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIAL|(^|_)KEY", re.IGNORECASE)
SECRET_VALUE = re.compile(r"://[^/@\s]*:[^/@\s]+@")
PINNED = re.compile(r"[^\s:]+:(?!latest$)[A-Za-z0-9_][A-Za-z0-9._-]*(@sha256:[0-9a-f]{64})?")
USER = re.compile(r"[1-9][0-9]*(:[1-9][0-9]*)?")


def faults(text: str) -> list[str]:
    """Return what is wrong with a compose file."""
    whole = yaml.safe_load(text)
    services = whole["services"]
    found = [f"{name}: {fault}" for name, each in services.items() for fault in of_service(name, each)]
    found += [f"{name}: missing" for name in sorted(LONG_RUNNING - set(services))]
    found += [f"secret {name}: not a file" for name, each in whole["secrets"].items() if set(each) != {"file"}]
    for name, each in whole["networks"].items():
        if name != "door" and not each.get("internal"):
            found.append(f"network {name}: leads outside")
    return found


def of_service(name: str, service: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with one service."""
    if not USER.fullmatch(str(service.get("user", ""))):
        yield "runs as root, or as nobody says whom"
    if "ALL" not in service.get("cap_drop", []) or "no-new-privileges:true" not in service.get("security_opt", []):
        yield "keeps capabilities"
    if service.get("privileged") or service.get("cap_add") or service.get("pid") or service.get("ipc"):
        yield "is given more rights"
    if not PINNED.fullmatch(str(service.get("image", ""))):
        yield "image not pinned"
    if name in LONG_RUNNING and (service.get("restart") != "unless-stopped" or "healthcheck" not in service):
        yield "not checked, or not started again"
    if not service.get("read_only"):
        yield "may change its own programs"
    if not set(service) >= LIMITS:
        yield "takes as much of the machine as it likes"
    if "max-size" not in service.get("logging", {}).get("options", {}):
        yield "its log grows for ever"
    yield from of_networks(name, service)
    yield from of_environment(service)
    yield from of_volumes(name, service.get("volumes", []))


def of_networks(name: str, service: Mapping[str, Any]) -> Iterator[str]:
    """Yield whom a service reaches, or is reached by, that it should not."""
    networks = set(service.get("networks", []))
    if service.get("network_mode", "none") != "none":
        yield "shares a network that the file does not declare"
    if any(not str(port).startswith("127.0.0.1:") for port in service.get("ports", [])):
        yield "port open beyond this machine"
    if service.get("ports") and name != "airflow":
        yield "port not needed"
    if "door" in networks and name != "airflow":
        yield "reaches outside"
    if networks & CLUSTERS and len(networks) > 1 and name not in DRIVERS:
        yield "joins a cluster to another network"


def of_environment(service: Mapping[str, Any]) -> Iterator[str]:
    """Yield where a secret may stand in the environment, or in the arguments of a build."""
    told = {**as_mapping(service.get("environment")), **as_mapping(service.get("build", {}).get("args"))}
    for key, value in told.items():
        if SECRET_NAME.search(key) or SECRET_VALUE.search(str(value)) or '"password"' in str(value):
            yield f"secret in the environment: {key}"
    if "env_file" in service:
        yield "environment from a file"


def as_mapping(told: Any) -> dict[str, Any]:
    """Return an environment as a mapping, in either of the two forms of compose files."""
    if isinstance(told, list):
        return dict(each.partition("=")[::2] for each in told)
    return dict(told or {})


def of_volumes(name: str, volumes: list[str]) -> Iterator[str]:
    """Yield where a service may write, or sees, what it should not."""
    writers = {"data": {"generate"}, "releases": {"submit", "officer", "airflow"}}
    readers = {
        "data": {*WORKERS, "submit", "airflow", "generate"},
        "staging": {*WORKERS, "submit", "officer", "airflow"},
        "airflow": {"airflow"},
        "ledger": {"ledger"},
        "backups": {"backup"},
        "database": {"database"},
    }
    for volume in volumes:
        source, _, mode = (*volume.split(":"), "")[:3]
        if source.startswith((".", "/")):
            yield f"a folder of the host: {source}"
        if source in writers and mode != "ro" and name not in writers[source]:
            yield f"may write {source}"
        if source in readers and name not in readers[source]:
            yield f"sees {source}"


def of_dockerfile(text: str) -> list[str]:
    """Return what is wrong with the Dockerfile, beyond what hadolint says."""
    found = []
    stages: dict[str, str | None] = {}
    stage, base = "", re.search(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    if base is None or not PINNED.fullmatch(base.group(1)):
        found.append("base not pinned")
    for line in text.splitlines():
        match line.split():
            case ["FROM", source, "AS", stage]:
                if source != "${BASE}" and source not in stages:
                    found.append(f"{stage}: from {source}")
                stages[stage] = stages.get(source)
            case ["USER", user]:
                stages[stage] = user
            case ["ADD", *_]:
                found.append(f"{stage}: ADD may fetch what nobody pinned")
    for name, last in stages.items():
        if name not in BUILDERS and not USER.fullmatch(last or ""):
            found.append(f"{name}: runs as root")
    return found
