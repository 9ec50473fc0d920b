"""S3's messages of results, from a queue of SQS."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

from ...delays import retry_delay
from ...errors import ConfigError
from .aws import aws_client
from .sqs_records import session_of_key, written_keys
from .threads import in_thread

logger = logging.getLogger(__name__)

_LONG_POLL_S = 20
#: What is for somebody else is theirs again after this.
_HIDDEN_S = 30
_AT_ONCE = 10
_RETRY_BASE_S = 1.0
#: Failures in a row before the user hears of them.
_WARN_AFTER = 3
_REGION = re.compile(r"https?://(?:sqs(?:-fips)?|queue)\.([a-z0-9-]+)\.(?:amazonaws|api\.aws)")


class ResultQueue:
    """Reads the queue while somebody expects a result.

    :param experiment: messages of others are left in the queue
    """

    def __init__(self, url: str, region: str, experiment: str) -> None:
        self.url = url
        found = _REGION.match(url)
        self._region = found[1] if found else region
        self._prefix = f"{experiment}/"
        self._expected: dict[str, Callable[[str], None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._client: Any = None

    async def prepare(self) -> None:
        """:raises ConfigError: when there is no such queue"""
        self._client = await aws_client("sqs", self._region)
        try:
            await self._call("get_queue_attributes", AttributeNames=["QueueArn"])
        except Exception as error:
            raise ConfigError(f"the queue {self.url} cannot be read: {error}") from error

    def expect(self, session_id: str, told_of: Callable[[str], None]) -> None:
        """``told_of`` gets the key of the session's result, for each message of it."""
        self._expected[session_id] = told_of
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())

    def forget(self, session_id: str) -> None:
        """It is expected no more."""
        self._expected.pop(session_id, None)

    async def close(self) -> None:
        """Ends the reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        failures = 0
        while self._expected:
            try:
                await self._read_once()
                failures = 0
            except Exception as error:  # noqa: PERF203 - each waits for the network
                failures += 1
                if failures == _WARN_AFTER:
                    logger.warning("the queue cannot be read, S3 is asked instead: %s", error)
                await asyncio.sleep(retry_delay(_RETRY_BASE_S, failures))

    async def _read_once(self) -> None:
        answer = await self._call(
            "receive_message",
            MaxNumberOfMessages=_AT_ONCE,
            WaitTimeSeconds=_LONG_POLL_S,
            VisibilityTimeout=_HIDDEN_S,
        )
        read = [message for message in answer.get("Messages", []) if self._take(message.get("Body", ""))]
        if read:
            entries = [
                {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                for number, message in enumerate(read)
            ]
            # One that stays in the queue comes again, and is for nobody then.
            await self._call("delete_message_batch", Entries=entries)

    def _take(self, body: str) -> bool:
        """Tells whoever expects it.

        :returns: whether the message is done with: a second one, or one for nobody, is too
        """
        keys = written_keys(body)
        ours = [key for key in keys if key.startswith(self._prefix)]
        for key in ours:
            told_of = self._expected.get(session_of_key(key))
            if told_of is not None:
                told_of(key)
        return len(ours) == len(keys)

    async def _call(self, name: str, **fields: Any) -> Any:
        return await asyncio.shield(
            in_thread(lambda: getattr(self._client, name)(QueueUrl=self.url, **fields))
        )
