"""Rollouts, which a proxy or a rollout server runs (docs/rollouts.md)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from .api import UNAVAILABLE_STATUSES, Api, quote_id
from .errors import ProxyApiError
from .nested_json import parse_json
from .steps import Pause, Response, Steps

logger = logging.getLogger("llm_proxy")

#: An agent may run for hours; the server sends whitespace every 15 s, so a silent connection is broken.
_ROLLOUT_TIMEOUT = httpx.Timeout(60, connect=10, pool=None)
#: Time after the first failure for which requests to a server are retried if there are other servers, or if it has
#: never accepted a rollout: its address may be wrong.
_RETRY_LIMIT_S = 30.0
#: The same for the only server, if it has accepted a rollout before: days of training depend on it, and the cluster may
#: be starting it on another machine.
_LONG_RETRY_LIMIT_S = 600.0
_RETRY_BASE_S = 0.25
_MAX_DELAY_S = 15.0
#: A connection that lasted longer than this, and so longer than the timeout, ends the earlier failures.
_STABLE_S = 90.0
_CANCEL_TIMEOUT = httpx.Timeout(5)


class Rollouts:
    """A runner of rollouts: each one runs on one of ``apis``, or on the next one if that is unavailable.

    :param apis: proxies that run or forward rollouts, or rollout servers
    """

    def __init__(self, apis: Sequence[Api]) -> None:
        self._apis = tuple(apis)
        #: The URLs of the servers that have accepted a rollout.
        self._accepted: set[str] = set()

    def run(self, rollout: Mapping[str, Any]) -> Steps[dict[str, Any]]:
        """Runs an agent and waits for the result.

        The request is repeated if a connection breaks or a server restarts. The server recognizes the rollout by its
        id: it joins a running one, and returns the result of a completed one. Cancelling the task ends the agent.

        :param rollout: the body of ``POST /rollouts``, with a ``rollout_id``
        :returns: the response for a completed rollout
        :raises ProxyApiError: if the rollout failed; a rollout whose agent failed does not raise
        """
        *others, last = random.sample(self._apis, len(self._apis))
        for api in others:
            response = yield from self._run_if_available(api, rollout)
            if response is not None:
                return response
        return (yield from self._run_at(last, rollout))

    def cancel(self, rollout_id: str) -> Steps[None]:
        """Cancels a rollout on whichever server it runs; callers that wait for it receive a ``ProxyApiError``."""
        for api in self._apis:
            yield from _cancel(api, rollout_id)

    def _run_if_available(self, api: Api, rollout: Mapping[str, Any]) -> Steps[dict[str, Any] | None]:
        """Returns ``None`` if the server stays unavailable."""
        try:
            return (yield from self._run_at(api, rollout))
        except ProxyApiError as error:
            if not _is_unavailable(error):
                raise
            logger.warning("%s; trying another server", error)
            return None

    def _run_at(self, api: Api, rollout: Mapping[str, Any]) -> Steps[dict[str, Any]]:
        try:
            return (yield from self._run_with_retries(api, rollout))
        except (asyncio.CancelledError, KeyboardInterrupt):
            yield from _cancel(api, str(rollout["rollout_id"]))
            raise

    def _run_with_retries(self, api: Api, rollout: Mapping[str, Any]) -> Steps[dict[str, Any]]:
        request = dataclasses.replace(
            api.request("POST", "/rollouts", json=rollout, timeout=_ROLLOUT_TIMEOUT),
            on_status=lambda status: self._note_status(api, status),
        )
        failures, first_failure_at = 0, 0.0
        while True:
            began = time.monotonic()
            try:
                return _parse_result(request.url, (yield request))
            except httpx.HTTPError as error:
                message = f"no rollout server responds at {request.url}: {error or type(error).__name__}"
                failure = ProxyApiError(message, status=0, code="unreachable")
            except ProxyApiError as error:
                failure = error
            now = time.monotonic()
            if failures == 0 or now - began > _STABLE_S:
                failures, first_failure_at = 0, now
            if not _is_unavailable(failure) or now - first_failure_at >= self._get_retry_limit(api):
                raise failure
            logger.warning("%s; retrying", failure)
            delay = min(_MAX_DELAY_S, _RETRY_BASE_S * 2**failures)
            failures += 1
            yield Pause(delay * (1 + random.random()) / 2)

    def _note_status(self, api: Api, status: int) -> None:
        """Notes that a server has accepted a rollout: it responds at once, and with the result when the agent ends."""
        if status < 300:
            self._accepted.add(api.url)

    def _get_retry_limit(self, api: Api) -> float:
        is_known = api.url in self._accepted and len(self._apis) == 1
        return _LONG_RETRY_LIMIT_S if is_known else _RETRY_LIMIT_S


def _cancel(api: Api, rollout_id: str) -> Steps[None]:
    request = api.request("DELETE", f"/rollouts/{quote_id(rollout_id)}", timeout=_CANCEL_TIMEOUT)
    try:
        response = yield request
    except httpx.HTTPError as error:
        # The server cancels it later, when it notices that no client waits for it.
        logger.warning("cancellation of %s was not confirmed: %s", request.url, error or type(error).__name__)
    else:
        if response.status >= 300 and response.status != 404:
            logger.warning("%s was not cancelled: %s", request.url, response.text[:300])


def _is_unavailable(error: ProxyApiError) -> bool:
    """Returns whether the server did not run the rollout, so that it, or another server, may run it later."""
    return error.status in (0, *UNAVAILABLE_STATUSES) or error.code == "shutting_down"


def _parse_result(url: str, response: Response) -> dict[str, Any]:
    """Returns the result of a rollout from its response.

    :raises ProxyApiError: with the message of the server
    """
    status = response.status
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        body: dict[str, Any] = parse_json(response.text)
        if status < 300 and body["status"] == "done":
            return body
        error = body if status >= 300 else body["error"]
        code, detail = str(error.get("code", "unknown")), str(error["detail"])
        if status == 404:
            detail += " (start llm-proxy rollout --listen, and llm-proxy serve with --rollout-server)"
        raise ProxyApiError(f"{url}: {detail}", status=status, code=code)
    message = f"{url} did not respond like this version of llm-proxy ({status})"
    raise ProxyApiError(message, status=status, code="unknown")
