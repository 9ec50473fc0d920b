"""What S3 tells a queue: https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_plus


def written_keys(body: str) -> list[str]:
    """The keys of the objects that a message says were written, decoded: as one asks S3 for them.

    None in one that is about something else (a new queue first gets a test event), or no notification. A message that
    SNS passed on is read as well.
    """
    message = _parse(body)
    if not isinstance(message, Mapping):
        return []
    if message.get("Type") == "Notification" and isinstance(message.get("Message"), str):
        return written_keys(message["Message"])
    records = message.get("Records")
    return [key for record in records for key in _key_of(record)] if isinstance(records, list) else []


def session_of_key(key: str) -> str:
    """The AgentCore session whose result is at a key.

    The last part is ``{session}.json``, or ``{input}_{session}.json`` as older apps write it. Our sessions' ids have no
    ``_`` in them.
    """
    return key.rsplit("/", 1)[-1].removesuffix(".json").rsplit("_", 1)[-1]


def _key_of(record: Any) -> list[str]:
    with contextlib.suppress(KeyError, TypeError, AttributeError, UnicodeDecodeError):
        if "ObjectCreated" in record.get("eventName", "ObjectCreated"):
            return [unquote_plus(record["s3"]["object"]["key"], errors="strict")]
    return []


def _parse(body: str) -> Any:
    with contextlib.suppress(ValueError):
        return json.loads(body)
    return None
