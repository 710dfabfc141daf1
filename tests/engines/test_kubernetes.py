"""Kubernetes: what is shipped and what Spark makes of it fit Kubernetes' schemas, and a release runs in such pods."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyspark
import pytest
import yaml

from pipeline.base.errors import PlanError
from pipeline.engines.spark_session import java_home, require_secret
from tests.support.spark import ROOT
from tests.support.submit import Place
from tests.support.world import records, write_world

CONF = ROOT / "conf" / "spark"
VERSION = "1.34"
SHIPPED = [
    each for name in ("executor", "kubernetes") for each in yaml.safe_load_all((CONF / f"{name}.yaml").read_text())
]


@pytest.mark.parametrize("document", SHIPPED, ids=lambda document: document["kind"])
def test_what_is_shipped_fits_kubernetes_schemas(document: dict[str, Any]) -> None:
    import kubernetes_validate  # takes seconds, and every process imports this module

    kubernetes_validate.validate(document, VERSION, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document | {"metadate": {}}, VERSION, strict=True)


def test_a_secret_that_would_stand_in_pods_is_refused() -> None:
    settings = {"spark.master": "k8s://https://a.example:443", "spark.authenticate": "true"}
    for more in ({}, {"spark.authenticate.secret": "s"}):
        with pytest.raises(PlanError, match=r"spark\.authenticate\.secret\.file is missing: without a file"):
            require_secret((settings | more).get, {})
    require_secret((settings | {"spark.authenticate.secret.file": "/etc/prdp/spark/secret"}).get, {})


class Cluster(ThreadingHTTPServer):
    """A Kubernetes API server that keeps what is created, and runs a pod's command here, as its user would be run."""

    daemon_threads = True

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), Api)
        self.folder, self.environment = folder, environment
        self.asked: list[dict[str, Any]] = []  # as they came
        self.created: list[dict[str, Any]] = []
        self.running: list[subprocess.Popen[bytes]] = []

    def run(self, pod: dict[str, Any]) -> None:
        (container,) = pod["spec"]["containers"]
        given = {each["name"]: each.get("value", "127.0.0.1") for each in container["env"]}
        given["SPARK_EXECUTOR_POD_NAME"] = pod["metadata"]["name"]
        given["SPARK_LOCAL_DIRS"] = str(self.folder / "spill")
        command = [*container["command"], *container["args"]]
        log = (self.folder / f"{pod['metadata']['name']}.log").open("wb")
        with log:
            self.running.append(
                subprocess.Popen(command, env=self.environment | given, cwd=self.folder, stdout=log, stderr=log)
            )


class Api(BaseHTTPRequestHandler):
    server: Cluster

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        pods = [each for each in self.server.created if each["kind"] == "Pod" and "/pods" in self.path]
        watching = "watch=true" in self.path  # nothing happens: Spark then asks for the list from time to time
        metadata = {"resourceVersion": "1"}
        listed = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": pods}
        self._answer({} if watching else listed)

    def do_POST(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(json.loads(json.dumps(document)))
        document["metadata"] |= {"uid": str(len(self.server.asked)), "resourceVersion": "1"}
        if document["kind"] == "Pod":
            self.server.run(document)
            document["status"] = {"phase": "Running", "podIP": "127.0.0.1"}
        self.server.created.append(document)
        self._answer(document)

    do_PATCH = do_PUT = do_DELETE = do_GET  # noqa: N815


@contextmanager
def kubernetes(folder: Path, environment: dict[str, str]) -> Iterator[Cluster]:
    with Cluster(folder, environment) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            for process in server.running:
                process.kill()
                process.wait()
            server.shutdown()


@pytest.mark.drill
def test_a_release_in_pods_whose_specifications_hold_no_secret(tmp_path: Path) -> None:
    import kubernetes_validate

    place = Place(write_world(tmp_path, records(60)), tmp_path)
    place.ledger()
    (tmp_path / "secret").write_text("of-this-application")
    environment = os.environ | {
        "JAVA_HOME": str(java_home(os.environ, tmp_path)),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "KUBECONFIG": os.devnull,
        "SPARK_CONF_DIR": str(CONF),  # as the Job's, which holds these files
    }
    own = {
        "spark.driver.host": "127.0.0.1",
        "spark.authenticate.secret.file": tmp_path / "secret",  # no kubelet mounts it for us
        "spark.kubernetes.executor.podTemplateFile": CONF / "executor.yaml",
        "spark.executor.instances": 1,
        "spark.executor.memory": "1g",
    }
    with kubernetes(tmp_path, environment) as cluster:
        master = f"k8s://http://127.0.0.1:{cluster.server_port}"
        settings = [word for key, value in own.items() for word in ("--conf", f"{key}={value}")]
        spark_submit = [
            "spark-submit",
            "--master",
            master,
            "--properties-file",
            str(CONF / "kubernetes.conf"),
            *settings,
        ]
        program = [str(ROOT / "jobs" / "release.py"), str(place.plan), "--out", str(place.out), "--ledger"]
        command = [str(Path(sys.executable).with_name(spark_submit[0])), *spark_submit[1:], *program]
        done = subprocess.run(
            [*command, str(place.ledger_path)], env=environment, capture_output=True, check=False, timeout=400
        )
        assert done.returncode == 0, done.stderr
    state = place.state()
    assert (state.status, state.draws) == ("settled", 1)
    kinds = [document["kind"] for document in cluster.asked]
    assert "Pod" in kinds
    (handed_on,) = (document["data"] for document in cluster.asked if document["kind"] == "ConfigMap")
    assert handed_on["log4j2.properties"] == (CONF / "log4j2.properties").read_text()
    for document in cluster.asked:
        kubernetes_validate.validate(document, VERSION, strict=True)
        assert "of-this-application" not in json.dumps(document)
        assert "_SPARK_AUTH_SECRET" not in json.dumps(document)
    pod = cluster.asked[kinds.index("Pod")]
    mounted = {mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    assert {"/etc/prdp/spark", "/srv/prdp/data", "/srv/prdp/staging"} <= mounted
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
