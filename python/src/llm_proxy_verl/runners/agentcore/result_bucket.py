"""Where results lie in S3."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from ...errors import ConfigError
from .aws import aws_client
from .threads import in_thread

#: Looks at a time; the others wait for their turn.
_AT_ONCE = 50
#: A result that took hours to make is worth some patience.
_ATTEMPTS = 10


class ResultBucket:
    """Reads objects."""

    def __init__(self, name: str, region: str) -> None:
        self.name = name
        self._region = region
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._client: Any = None

    async def prepare(self, experiment: str) -> None:
        """Asks for what is not there.

        :raises ConfigError: when that is not the answer
        """
        own = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        self._client = await aws_client(
            "s3",
            self._region,
            retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
            max_pool_connections=_AT_ONCE,
            # A server of one's own has no host name for each bucket.
            s3={"addressing_style": "path" if own else "auto"},
        )
        try:
            await self.get(f"{experiment}/none")
        except Exception as error:
            needed = "s3:GetObject on its objects and s3:ListBucket on the bucket are needed"
            raise ConfigError(f"results in {self.name} cannot be read; {needed}: {error}") from error

    async def get(self, key: str) -> bytes | None:
        """``None`` if there is no such object; raises what boto3 raises, which has tried again."""
        async with self._turns:
            return await asyncio.shield(in_thread(lambda: self._get(key)))

    def _get(self, key: str) -> bytes | None:
        """In a thread."""
        try:
            body: bytes = self._client.get_object(Bucket=self.name, Key=key)["Body"].read()
        except self._client.exceptions.NoSuchKey:
            # Without a bucket there never will be one, which is another error.
            return None
        return body
