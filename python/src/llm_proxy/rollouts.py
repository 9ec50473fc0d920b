"""Rollouts, on any server that runs them (docs/rollouts.md)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from .api import NOT_THERE, Api, quoted
from .errors import ProxyApiError
from .steps import Answer, Pause, Steps

logger = logging.getLogger("llm_proxy")

#: An agent may run for hours; the server sends a sign of life every 15 s.
_ROLLOUT_TIMEOUT = httpx.Timeout(60, connect=10, pool=None)
#: How long requests to a server that has never responded are retried: its address may be wrong.
_PATIENCE_S = 30.0
#: The same for the only server, if it has responded before: days of training depend on it, and it may be restarting
#: elsewhere.
_LONG_PATIENCE_S = 600.0
_RETRY_BASE_S = 0.25
_LONGEST_DELAY_S = 15.0
#: A connection that lasted this long, longer than it may be silent, does not count as a failed attempt.
_HELD_S = 90.0
_FAREWELL_TIMEOUT = httpx.Timeout(5)


class Rollouts:
    """Runs each rollout at one of ``apis``, or the next if that one is unavailable.

    :param apis: proxies that run or forward rollouts, or rollout servers
    """

    def __init__(self, apis: Sequence[Api]) -> None:
        self._apis = tuple(apis)
        self._answered: set[str] = set()

    def run(self, rollout: Mapping[str, Any]) -> Steps[dict[str, Any]]:
        """Runs an agent and waits for the result.

        If a connection breaks or a server restarts, the request is repeated: by its id, a running rollout is joined,
        and the result of an ended one is returned again. If the task is cancelled, the agent is ended.

        :param rollout: the body of ``POST /rollouts``, with a ``rollout_id``
        :returns: the response for a completed rollout
        :raises ProxyApiError: that names the failure; the failure of an agent is not a failure of its rollout
        """
        *others, last = random.sample(self._apis, len(self._apis))
        for api in others:
            with contextlib.suppress(_UnreachableError):
                return (yield from self._run_at(api, rollout, _PATIENCE_S))
        is_known = last.url in self._answered and not others
        return (yield from self._run_at(last, rollout, _LONG_PATIENCE_S if is_known else _PATIENCE_S))

    def cancel(self, rollout_id: str) -> Steps[None]:
        """Cancels a rollout, wherever it runs; callers that wait for it receive a ``ProxyApiError``."""
        for api in self._apis:
            yield from _cancel(api, rollout_id)

    def _run_at(self, api: Api, rollout: Mapping[str, Any], patience_s: float) -> Steps[dict[str, Any]]:
        try:
            return (yield from self._until_done(api, rollout, patience_s))
        except (asyncio.CancelledError, KeyboardInterrupt):
            yield from _cancel(api, str(rollout["rollout_id"]))
            raise

    def _until_done(self, api: Api, rollout: Mapping[str, Any], patience_s: float) -> Steps[dict[str, Any]]:
        request = api.request("POST", "/rollouts", json=rollout, timeout=_ROLLOUT_TIMEOUT)
        heard, failures = time.monotonic(), 0
        while True:
            began = time.monotonic()
            refusal: ProxyApiError
            try:
                answer = _done(request.url, (yield request))
            except httpx.HTTPError as error:
                refusal = _UnreachableError(
                    f"no rollout server at {request.url}: {error or type(error).__name__}"
                )
            except ProxyApiError as error:
                refusal = error
            else:
                self._answered.add(api.url)
                return answer
            now = time.monotonic()
            if now - began > _HELD_S:
                heard, failures = now, 0
            is_away = refusal.status in (0, *NOT_THERE) or refusal.code == "shutting_down"
            if not is_away or now - heard >= patience_s:
                raise refusal
            logger.warning("%s; asking again", refusal)
            delay = min(_LONGEST_DELAY_S, _RETRY_BASE_S * 2**failures)
            failures += 1
            yield Pause(delay * (1 + random.random()) / 2)


def _cancel(api: Api, rollout_id: str) -> Steps[None]:
    request = api.request("DELETE", f"/rollouts/{quoted(rollout_id)}", timeout=_FAREWELL_TIMEOUT)
    try:
        answer = yield request
    except httpx.HTTPError as error:
        # Its server ends it too, a little later, because no client waits for it any more.
        logger.warning(
            "no response confirms that %s was cancelled: %s", request.url, error or type(error).__name__
        )
    else:
        if answer.status >= 300 and answer.status != 404:
            logger.warning("%s was not cancelled: %s", request.url, answer.text[:300])


class _UnreachableError(ProxyApiError):
    def __init__(self, message: str) -> None:
        super().__init__(message, status=0, code="unreachable")


def _done(url: str, answer: Answer) -> dict[str, Any]:
    """Returns the result.

    :raises ProxyApiError: with the server's message, which contains the remedy
    """
    status = answer.status
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        body: dict[str, Any] = json.loads(answer.text)
        if status < 300 and body["status"] == "done":
            return body
        error = body if status >= 300 else body["error"]
        code, detail = str(error.get("code", "unknown")), str(error["detail"])
        if status == 404:
            detail += " (give llm-proxy serve a --rollout-server: llm-proxy rollout --listen)"
        raise ProxyApiError(f"{url}: {detail}", status=status, code=code)
    what = f"{url} does not answer as this version of llm-proxy does ({status})"
    raise ProxyApiError(what, status=status, code="unknown")
