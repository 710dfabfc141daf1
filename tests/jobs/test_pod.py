"""The pod template of conf/airflow/ is a pod to Kubernetes, and gives a task no more than it needs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "conf" / "airflow" / "pod.yaml"
VERSIONS = ("1.30", "1.37")
NEEDED = {"/run/prdp", "/tmp", "/srv/prdp/staging", "/srv/prdp/releases", "/srv/airflow"}  # all that a task writes to


def faults(pod: Any) -> Iterator[str]:
    """Yield what is wrong with the pod of a task."""
    import kubernetes_validate  # takes seconds, and every process imports this module

    for version in VERSIONS:
        try:
            kubernetes_validate.validate(pod, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"Kubernetes {version}: {error.message}"
            return
    spec = pod["spec"]
    (container,) = spec["containers"]
    security = spec.get("securityContext", {}) | container.get("securityContext", {})
    if container["name"] != "base":
        yield "Airflow does not find its container"
    if not security.get("runAsNonRoot") or security.get("allowPrivilegeEscalation") is not False:
        yield "may become root"
    if security.get("capabilities") != {"drop": ["ALL"]} or security.get("privileged"):
        yield "keeps capabilities"
    if spec.get("automountServiceAccountToken") is not False:
        yield "may speak to Kubernetes"
    if set(container["resources"].get("limits", {})) != {"cpu", "memory"}:
        yield "takes as much of the machine as it likes"
    if any("secretKeyRef" in each.get("valueFrom", {}) or "PASSWORD" in each["name"] for each in container["env"]):
        yield "secret in the environment"
    if any("hostPath" in each for each in spec["volumes"]) or spec.get("hostNetwork"):
        yield "reaches into its host"
    writable = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    if not security.get("readOnlyRootFilesystem") or writable != NEEDED:
        yield "writes elsewhere than to what it is given"
    if {each["name"] for each in container["volumeMounts"]} != {each["name"] for each in spec["volumes"]}:
        yield "mounts what is not there"


BROKEN: dict[str, Callable[[Any, Any], object]] = {
    "a word that Kubernetes does not know": lambda spec, base: base.update(enviroment=[]),
    "a wrong type": lambda spec, base: base.update(env="PGUSER=releaser"),
    "another name": lambda spec, base: base.update(name="prdp"),
    "root": lambda spec, base: spec["securityContext"].pop("runAsNonRoot"),
    "capabilities": lambda spec, base: base["securityContext"].pop("capabilities"),
    "Kubernetes' own token": lambda spec, base: spec.pop("automountServiceAccountToken"),
    "no limit": lambda spec, base: base["resources"]["limits"].pop("memory"),
    "a password": lambda spec, base: base["env"].append({"name": "PGPASSWORD", "value": "x"}),
    "the host's disk": lambda spec, base: spec["volumes"][0].update(hostPath={"path": "/"}, emptyDir=None),
    "a root that can be written": lambda spec, base: base["securityContext"].update(readOnlyRootFilesystem=False),
    "microdata that change": lambda spec, base: [each.pop("readOnly", None) for each in base["volumeMounts"]],
    "a volume that is not there": lambda spec, base: spec["volumes"].pop(),
}


def test_template_is_a_pod_of_a_task() -> None:
    assert list(faults(yaml.safe_load(TEMPLATE.read_text()))) == []


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_template_that_is_wrong_is_seen(broken: Callable[[Any, Any], object]) -> None:
    pod = yaml.safe_load(TEMPLATE.read_text())
    broken(pod["spec"], pod["spec"]["containers"][0])
    assert list(faults(pod)) != []
