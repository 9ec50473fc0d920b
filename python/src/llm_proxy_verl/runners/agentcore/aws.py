"""Clients of AWS, with the credentials and endpoints that every one finds: profiles, roles, ``AWS_ENDPOINT_URL_*``."""

from __future__ import annotations

import asyncio
from typing import Any

from ...errors import ConfigError
from .threads import in_thread


async def aws_client(service: str, region: str, **options: Any) -> Any:
    """Makes a client, which reads files.

    :param options: of ``botocore.config.Config``
    :raises ConfigError: when boto3, credentials or a profile are not there
    """

    def make() -> Any:
        try:
            import boto3.session
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise ConfigError(
                "the agentcore runner needs boto3: pip install 'llm-proxy-verl[agentcore]'"
            ) from error
        try:
            # A session is nothing that threads may share.
            session = boto3.session.Session()
            if session.get_credentials() is None:
                raise ConfigError("there are no AWS credentials")
            return session.client(service, region_name=region, config=Config(**options))
        except BotoCoreError as error:
            raise ConfigError(f"AWS: {error}") from error

    return await asyncio.shield(in_thread(make))
