"""What agent loops ask for: rollouts, of whoever runs them (docs/rollouts.md), and a proxy's mode."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp

from .errors import ProxyApiError

logger = logging.getLogger(__name__)

#: An agent may work for hours, and a server that waits for one gives a sign of life each 15 s.
_ROLLOUT_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
_ANSWER_TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=10)
#: How long a server that never answered is asked again: the address may be wrong.
_PATIENCE_S = 30.0
#: And one that has answered before, and is the only one: days of training hang on it, and it may be moved.
_LONG_PATIENCE_S = 600.0
_RETRY_BASE_S = 0.25
_LONGEST_DELAY_S = 15.0
#: A connection that held for so long, longer than it may be silent, was no attempt that failed.
_HELD_S = 90.0
_NOT_THERE = (502, 503, 504)
#: How long the server is told that nobody wants a rollout any more.
_FAREWELL_S = 5.0


class RolloutClient:
    """Runs each rollout at one of ``urls``, the next if that one is not there.

    :param urls: of proxies that run rollouts, or pass them on, or of rollout servers
    """

    def __init__(
        self, urls: Sequence[str], http: aiohttp.ClientSession, admin_key: str | None = None
    ) -> None:
        self._urls = tuple(urls)
        self._answered: set[str] = set()
        self._http = http
        self._headers = {} if admin_key is None else {"Authorization": f"Bearer {admin_key}"}

    async def run(self, rollout: Mapping[str, Any]) -> dict[str, Any]:
        """Runs an agent, and waits for what came of it.

        A connection that breaks, or a server that restarts, is asked again: by its id a rollout that still runs is
        joined, and the result of one that has ended is given again. The agent of a task that is cancelled is ended.

        :param rollout: the body of ``POST /rollouts``, with an id
        :returns: the answer of a rollout that is done
        :raises ProxyApiError: that names what failed; an agent that fails is no failure of its rollout
        """
        *others, last = random.sample(self._urls, len(self._urls))
        for url in others:
            with contextlib.suppress(_NobodyThereError):
                return await self._run_at(url, rollout, _PATIENCE_S)
        is_known = f"{last}/rollouts" in self._answered and not others
        return await self._run_at(last, rollout, _LONG_PATIENCE_S if is_known else _PATIENCE_S)

    async def _run_at(self, url: str, rollout: Mapping[str, Any], patience_s: float) -> dict[str, Any]:
        try:
            return await self._until_done(f"{url}/rollouts", json.dumps(rollout).encode(), patience_s)
        except asyncio.CancelledError:
            await self._call_off(f"{url}/rollouts/{quote(str(rollout['rollout_id']), safe='')}")
            raise

    async def _call_off(self, url: str) -> None:
        try:
            status, text = await asyncio.wait_for(self._send("DELETE", url, _ANSWER_TIMEOUT), _FAREWELL_S)
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            # Its server ends it too, a little later: nobody waits for it any more.
            logger.warning("nobody says that %s has ended: %s", url, error or type(error).__name__)
        else:
            if status >= 300 and status != 404:
                logger.warning("%s was not called off: %s", url, text[:300])

    async def _until_done(self, url: str, body: bytes, patience_s: float) -> dict[str, Any]:
        heard, failures = time.monotonic(), 0
        while True:
            began = time.monotonic()
            refusal: ProxyApiError
            try:
                answer = _done(url, *await self._send("POST", url, _ROLLOUT_TIMEOUT, body))
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
                refusal = _NobodyThereError(f"nobody runs rollouts at {url}: {error or type(error).__name__}")
            except ProxyApiError as error:
                refusal = error
            else:
                self._answered.add(url)
                return answer
            now = time.monotonic()
            if now - began > _HELD_S:
                heard, failures = now, 0
            is_away = refusal.status in (0, *_NOT_THERE) or refusal.code == "shutting_down"
            if not is_away or now - heard >= patience_s:
                raise refusal
            logger.warning("%s; asking again", refusal)
            delay = min(_LONGEST_DELAY_S, _RETRY_BASE_S * 2**failures)
            failures += 1
            await asyncio.sleep(delay * (1 + random.random()) / 2)

    async def _send(
        self, method: str, url: str, timeout: aiohttp.ClientTimeout, body: bytes | None = None
    ) -> tuple[int, str]:
        headers = {**self._headers, **({} if body is None else {"Content-Type": "application/json"})}
        async with self._http.request(method, url, data=body, headers=headers, timeout=timeout) as response:
            return response.status, await response.text()


async def mode_of(proxy_url: str, http: aiohttp.ClientSession) -> str | None:
    """``local`` or ``relay``; ``None`` of a proxy that does not tell."""
    try:
        async with http.get(f"{proxy_url}/health", timeout=_ANSWER_TIMEOUT) as response:
            return str((await response.json())["mode"])
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError, KeyError, TypeError) as error:
        logger.warning("no proxy tells its mode at %s: %s", proxy_url, error or type(error).__name__)
        return None


class _NobodyThereError(ProxyApiError):
    def __init__(self, message: str) -> None:
        super().__init__(message, status=0, code="unreachable")


def _done(url: str, status: int, text: str) -> dict[str, Any]:
    """:raises ProxyApiError: with the server's own words, so that what to do about it is said once"""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        answer: dict[str, Any] = json.loads(text)
        if status < 300 and answer["status"] == "done":
            return answer
        error = answer if status >= 300 else answer["error"]
        code, detail = str(error.get("code", "unknown")), str(error["detail"])
        if status == 404:
            detail += " (give llm-proxy serve a --rollout-server: llm-proxy rollout --listen)"
        raise ProxyApiError(f"{url}: {detail}", status=status, code=code)
    what = f"{url} does not answer as this version of llm-proxy does ({status})"
    raise ProxyApiError(what, status=status, code="unknown")
