"""The proxy's HTTP API (docs/http-api.md) as steps, which a runner of ``steps.py`` performs."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from .errors import ProxyApiError
from .nested_json import parse_json
from .steps import Pause, Request, Response, Steps

logger = logging.getLogger("llm_proxy")

_RESPONSE_TIMEOUT = httpx.Timeout(60, connect=10, pool=None)
#: Requests to an unavailable proxy are retried for this long after the first failure, for example while it restarts.
_RETRY_LIMIT_S = 30.0
_RETRY_BASE_S = 0.25
_MAX_DELAY_S = 5.0
UNAVAILABLE_STATUSES = (502, 503, 504)

#: The duration of one long poll, shorter than the timeout of a silent connection.
POLL_S = 30.0


def show_url(url: str) -> str:
    """Returns a URL for messages, without the user name and the password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def hide_credentials(text: str) -> str:
    """Replaces everything before the last ``@`` of text that should be a URL, except the scheme."""
    return re.sub(r"^([a-z][a-z\d+.-]*://)?.*@", r"\1***@", text, flags=re.IGNORECASE | re.DOTALL)


class Api:
    """The API of a proxy, or of a load balancer in front of several."""

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            shown = hide_credentials(url)
            raise ValueError(f"the URL of a proxy must begin with http:// or https://, unlike {shown!r}")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        timeout: httpx.Timeout | None = None,
    ) -> Request:
        """Returns a request that contains the key; parameters that are ``None`` are omitted."""
        query = omit_none(params or {}) or None
        return Request(method, self.url + path, self.headers, timeout or _RESPONSE_TIMEOUT, query, json)

    def send(
        self, method: str, path: str, *, retry: bool = True, lines: bool = False, **options: Any
    ) -> Steps[Any]:
        """Sends a request and retries it while the proxy is unavailable.

        :param retry: false for a request that must not be repeated
        :param lines: whether the response has a JSON value on each line; the values are returned as a list
        :returns: the JSON of the response
        :raises ProxyApiError: with the proxy's message
        """
        request = self.request(method, path, **options)
        first_failure_at, delay = 0.0, _RETRY_BASE_S
        while True:
            try:
                return _parse_response(request.url, (yield request), lines)
            except ProxyApiError as error:
                failure = error
            except httpx.HTTPError as error:
                message = f"no proxy responds at {show_url(request.url)}: {error or type(error).__name__}"
                failure = ProxyApiError(message, status=0, code="unreachable")
            is_unavailable = failure.status in (0, *UNAVAILABLE_STATUSES)
            now = time.monotonic()
            # Measured from the first failure, because a long poll may fail when it has already lasted this long.
            first_failure_at = first_failure_at or now
            if not (is_unavailable and retry) or now - first_failure_at >= _RETRY_LIMIT_S:
                raise failure
            logger.warning("%s; retrying", failure)
            yield Pause(delay * (1 + random.random()) / 2)
            delay = min(_MAX_DELAY_S, 2 * delay)


def omit_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that are not ``None``."""
    return {name: value for name, value in fields.items() if value is not None}


def quote_id(session_id: str) -> str:
    """Percent-encodes an id for a segment of a path."""
    return quote(session_id, safe="")


def get_open_key(session_id: str) -> str:
    """Returns the key of a session of a proxy without keys: its id, encoded as the proxy encodes it."""
    return quote(session_id, safe=":!*'()")


def build_query(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Converts filters to query parameters; ``metadata`` is a mapping, and its strings are sent as JSON strings."""
    metadata = filters.get("metadata") or {}
    query = {name: value for name, value in filters.items() if name != "metadata"}
    for name, value in metadata.items():
        query[f"metadata.{name}"] = json.dumps(value)
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}


def build_row_query(options: Mapping[str, Any]) -> dict[str, Any]:
    """Converts options of rows to query parameters; ``details`` may be a list of names.

    ``None``, ``False`` and ``()`` are omitted, but not 0, which equals ``False``.
    """
    query = {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and value != ()
    }
    if not isinstance(query.get("details", ""), str):
        query["details"] = ",".join(query["details"])
    return query


def _parse_response(url: str, response: Response, lines: bool) -> Any:
    """Returns the JSON of a response.

    :raises ProxyApiError: if the proxy rejected the request, or if the response is not from a proxy
    """
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        if lines and response.status < 300:
            return [parse_json(line) for line in response.text.split("\n") if line]
        body = parse_json(response.text)
        if response.status < 300:
            return body
        raise ProxyApiError(
            f"{show_url(url)}: {body['detail']}",
            status=response.status,
            code=str(body.get("code", "unknown")),
        )
    message = f"{show_url(url)} did not respond like llm-proxy ({response.status})"
    raise ProxyApiError(message, status=response.status, code="unknown")
