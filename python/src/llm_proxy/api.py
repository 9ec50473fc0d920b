"""The proxy's API as steps (docs/http-api.md)."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from .errors import ProxyApiError
from .steps import Answer, Pause, Request, Steps

logger = logging.getLogger("llm_proxy")

_ANSWER_TIMEOUT = httpx.Timeout(60, connect=10, pool=None)
#: How long requests to an unavailable proxy are retried, such as during its restart.
_PATIENCE_S = 30.0
_RETRY_BASE_S = 0.25
_LONGEST_DELAY_S = 5.0
NOT_THERE = (502, 503, 504)

#: The duration of one long poll, shorter than the timeout of a silent connection.
POLL_S = 30.0


class Api:
    """One proxy, or one load balancer in front of several."""

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"a proxy has an http:// or https:// URL, which {url!r} is not")
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
        """Returns a request with the key. Parameters that are ``None`` are omitted."""
        query = without_none(params or {}) or None
        return Request(method, self.url + path, self.headers, timeout or _ANSWER_TIMEOUT, query, json)

    def call(
        self, method: str, path: str, *, again: bool = True, lines: bool = False, **options: Any
    ) -> Steps[Any]:
        """Sends a request, and retries it while the proxy is unavailable.

        :param again: false for a request that must not be repeated
        :param lines: the response has a JSON value on each line, and becomes a list
        :returns: the response's JSON
        :raises ProxyApiError: with the proxy's message
        """
        request = self.request(method, path, **options)
        began, delay = time.monotonic(), _RETRY_BASE_S
        while True:
            try:
                return _parse_json(request.url, (yield request), lines)
            except ProxyApiError as error:
                refusal = error
            except httpx.HTTPError as error:
                what = f"no proxy answers at {request.url}: {error or type(error).__name__}"
                refusal = ProxyApiError(what, status=0, code="unreachable")
            is_away = refusal.status in (0, *NOT_THERE)
            if not (is_away and again) or time.monotonic() - began >= _PATIENCE_S:
                raise refusal
            logger.warning("%s; asking again", refusal)
            yield Pause(delay * (1 + random.random()) / 2)
            delay = min(_LONGEST_DELAY_S, 2 * delay)


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that are not ``None``."""
    return {name: value for name, value in fields.items() if value is not None}


def quoted(session_id: str) -> str:
    """Quotes an id as a part of a path."""
    return quote(session_id, safe="")


def open_key(session_id: str) -> str:
    """Returns the key of a session on a proxy without keys: its id, encoded like the proxy does."""
    return quote(session_id, safe=":!*'()")


def build_query(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Converts filters to parameters: ``metadata`` is a mapping, and each text in it is a JSON string."""
    metadata = filters.get("metadata") or {}
    query = {name: value for name, value in filters.items() if name != "metadata"}
    for name, value in metadata.items():
        query[f"metadata.{name}"] = json.dumps(value)
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}


def row_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Converts options of trajectories to parameters; ``details`` may be a list of names."""
    given = {name: value for name, value in options.items() if value not in (None, False, ())}
    if not isinstance(given.get("details", ""), str):
        given["details"] = ",".join(given["details"])
    return given


def _parse_json(url: str, answer: Answer, lines: bool) -> Any:
    """Returns the JSON of a response.

    :raises ProxyApiError: for a rejection, and for a response that is not a proxy's
    """
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        if lines and answer.status < 300:
            return [json.loads(line) for line in answer.text.split("\n") if line]
        body = json.loads(answer.text)
        if answer.status < 300:
            return body
        raise ProxyApiError(
            f"{url}: {body['detail']}", status=answer.status, code=str(body.get("code", "unknown"))
        )
    what = f"{url} does not answer as llm-proxy does ({answer.status})"
    raise ProxyApiError(what, status=answer.status, code="unknown")
