"""Create-if-absent in a store: one conditional put, of which of several writers at most one gets through.

pyarrow.fs cannot send If-None-Match, so S3 is asked through boto3 (the extra `s3`); other stores are refused.
"""

import os
import uuid
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

from pipeline.errors import StateError
from pipeline.storage.location import Stored, told_of

TRIES = 5  # S3 answers 409 where two puts meet, and asks for another try


def create(at: Stored, data: bytes) -> bool:
    """Write the object where there is none; return whether it was written by this call. Raises OSError.

    Guarantee: an object that is there is never replaced. Where an answer was lost and asked for again, False may stand
    for one's own object: compare the contents.
    """
    client = _client(at.query)
    told = (0, "")
    for _ in range(TRIES):
        try:
            client.put_object(Bucket=at.authority, Key=at.key, Body=data, IfNoneMatch="*")
            return True
        except Exception as error:  # botocore's errors have no narrower common class
            status = _status(error)
            if status == 412:
                return False
            told = told_of(error)
            if status != 409:
                break
    raise OSError(*told, str(at))


def require(folder: Stored) -> None:
    """Return if objects can be created in `folder`, and one that is there is kept; leaves nothing behind.

    Raises StateError where the store cannot do that: a manifest must never replace another.
    """
    if folder.scheme != "s3":
        raise StateError(
            f"the output place {folder}: {folder.scheme}:// has no create-if-absent here; give a path or s3:// as --out"
        )
    probe = folder / f".prdp-probe-{uuid.uuid4().hex}"
    try:
        kept = create(probe, b"1") and not create(probe, b"2")
        _client(probe.query).delete_object(Bucket=probe.authority, Key=probe.key)
    except ImportError:
        raise StateError(f"the output place {folder}: s3:// needs boto3; pip install 'prdp[s3]'") from None
    except Exception as error:
        line = error.strerror if isinstance(error, OSError) and error.strerror else told_of(error)[1]
        raise StateError(f"the output place {folder} cannot be written: {line}") from None
    if not kept:
        raise StateError(
            f"the output place {folder}: its store replaces objects in spite of If-None-Match; give another --out"
        )


def _status(error: Exception) -> int:
    answer = getattr(error, "response", None) or {}
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


@cache
def _client(query: str) -> Any:
    import boto3  # noqa: PLC0415 — an extra, and half a second
    from botocore.config import Config  # noqa: PLC0415

    options = dict(parse_qsl(query))
    endpoint = options.get("endpoint_override")
    where = {"endpoint_url": f"{options.get('scheme', 'https')}://{endpoint}"} if endpoint else {}
    session = boto3.Session()
    region = options.get("region") or os.environ.get("AWS_REGION") or session.region_name
    style = {"addressing_style": "path" if endpoint else "auto"}
    config = Config(s3=style, connect_timeout=5, retries={"mode": "standard", "total_max_attempts": 3})
    trust = {"verify": options["tls_ca_file_path"]} if "tls_ca_file_path" in options else {}
    return session.client("s3", region_name=region or "us-east-1", config=config, **where, **trust)
