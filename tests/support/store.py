"""An S3-compatible server on loopback, and places in its buckets."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import boto3
import pytest
from botocore.config import Config
from moto.server import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from pipeline.storage.location import Location
from pipeline.storage.objects import StorePath
from pipeline.storage.paths import locate

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "CANARYACCESSKEY",
    "AWS_SECRET_ACCESS_KEY": "canary-secret-key",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
UNCONDITIONAL = "unconditional-"  # begins the names of buckets that do not know If-None-Match


class Quiet(WSGIRequestHandler):
    """Logs nothing."""

    def log(self, type: str, message: str, *args: Any) -> None:
        pass


class Server:
    """Moto's, with puts one after the other: its own check of If-None-Match and the put are not one step."""

    def __init__(self) -> None:
        self.moto = create_backend_app("s3")  # itself: what sends requests to services looks through a folder at each
        self.one_put = Lock()

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        if environ["PATH_INFO"].startswith(f"/{UNCONDITIONAL}"):
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if environ["REQUEST_METHOD"] != "PUT":
            return self.moto(environ, start)
        with self.one_put:
            return self.moto(environ, start)


@dataclass(frozen=True)
class Store:
    """A running server."""

    address: str

    @cached_property
    def client(self) -> Any:
        """A client that is not the product's."""
        style = Config(s3={"addressing_style": "path"})
        return boto3.client("s3", endpoint_url=f"http://{self.address}", config=style)

    def uri(self, bucket: str, key: str = "") -> str:
        """The URI of a place in a bucket."""
        return f"s3://{bucket}/{key}".rstrip("/") + f"?endpoint_override={self.address}&scheme=http"

    def bucket(self, kind: str = "test-") -> StorePath:
        """A new, empty bucket."""
        name = f"{kind}{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=name)
        made = locate(self.uri(name))
        assert isinstance(made, StorePath)
        return made

    def deny(self, at: StorePath, *actions: str) -> None:
        """Deny actions on a bucket's objects to everyone."""
        resource = f"arn:aws:s3:::{at.authority}"
        statement = {
            "Effect": "Deny",
            "Principal": "*",
            "Action": [f"s3:{action}" for action in actions],
            "Resource": [resource, f"{resource}/*"],
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self.client.put_bucket_policy(Bucket=at.authority, Policy=policy)


@contextmanager
def running(application: Server | None = None) -> Iterator[Store]:
    """Yield a server of this process, whose credentials stand in the environment."""
    server = make_server("127.0.0.1", 0, application or Server(), threaded=True, request_handler=Quiet)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in ENVIRONMENT.items():
                patch.setenv(name, value)
            yield Store(f"127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def upload(folder: Path, target: StorePath) -> StorePath:
    """Put every file of a folder below a prefix."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        (target / path.relative_to(folder).as_posix()).write(path.read_bytes())
    return target


def contents(at: Location) -> dict[str, bytes]:
    """The bytes of every object below a prefix, by path."""
    assert isinstance(at, StorePath)
    return {found.relative_to(at): found.read() for found in at.files()}
