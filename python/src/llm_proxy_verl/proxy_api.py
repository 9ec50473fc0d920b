"""What a rollout asks of the proxy: its REST API, docs/http-api.md."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from .delays import retry_delay
from .errors import ProxyApiError
from .session_urls import url_segment

#: How long one answer may take: a long session is a long answer.
_ANSWER_TIMEOUT = aiohttp.ClientTimeout(total=120, sock_connect=10)
#: Of one long poll; short enough for any idle limit on the way.
_POLL_S = 30
#: A proxy that restarts is back within these: 16 s at most.
_RETRIES = 6
_RETRY_BASE_S = 0.25
_NOT_THERE = (502, 503, 504)


class ProxyApi:
    """One proxy.

    Nothing that is asked here does harm when it is asked for twice, so a connection that blinks, or a proxy that
    restarts, fails no rollout. Every method raises ``ProxyApiError``.
    """

    def __init__(self, url: str, http: aiohttp.ClientSession, admin_key: str | None = None) -> None:
        self.url = url
        self._http = http
        self._headers = {} if admin_key is None else {"Authorization": f"Bearer {admin_key}"}

    async def health(self) -> dict[str, Any]:
        """``GET /health``."""
        return await self._ask("GET", "/health")

    async def create_session(
        self,
        session_id: str,
        *,
        metadata: Mapping[str, Any],
        sampling_params: Mapping[str, Any],
        trust_agent: bool = False,
        record: Sequence[str] = (),
    ) -> str:
        """Registers a session.

        :returns: the key under which its agent calls: its own, or on a proxy without keys the session's id
        """
        body: dict[str, Any] = {
            "session_id": session_id,
            "metadata": metadata,
            "sampling_params": sampling_params,
        }
        if trust_agent:
            body["trust_agent"] = True
        if record:
            body["record"] = list(record)
        created = await self._ask("POST", "/sessions", body)
        return str(created.get("agent_key") or url_segment(session_id))

    async def complete(self, session_id: str) -> str:
        """Ends a session well; returns the status that it has now, ``not_found`` if somebody has removed it."""
        return str((await self._ask("POST", f"{_path(session_id)}/complete"))["status"])

    async def abort(self, session_id: str) -> None:
        """Ends a session badly: its calls in flight are cancelled, and from now on it takes none."""
        await self._ask("POST", f"{_path(session_id)}/abort")

    async def set_reward(self, session_id: str, reward: float, components: Mapping[str, float]) -> None:
        """Sets the total and its named parts."""
        await self._ask("POST", f"{_path(session_id)}/reward", {"reward": reward, "components": components})

    async def until_ended(self, session_id: str) -> str:
        """Waits until somebody has completed or aborted the session; returns which."""
        while True:
            status = str((await self._ask("GET", f"{_path(session_id)}/wait?timeout_s={_POLL_S}"))["status"])
            if status != "active":
                return status

    async def trajectories(self, session_id: str, **params: str | int) -> dict[str, Any]:
        """The session as training-ready rows; ``params`` are the route's own."""
        query = "&".join(f"{name}={value}" for name, value in params.items())
        return await self._ask("GET", f"{_path(session_id)}/trajectories?{query}")

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        for failures in range(1, _RETRIES + 2):
            try:
                status, text = await self._send(method, path, body)
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
                refusal = ProxyApiError(
                    f"no proxy answers at {self.url}: {error or type(error).__name__}",
                    status=0,
                    code="unreachable",
                )
            else:
                value = _json_object(text)
                if status < 300 and value is not None:
                    return value
                refusal = self._refusal(path, status, value)
            if refusal.status not in (0, *_NOT_THERE) or failures > _RETRIES:
                raise refusal
            await asyncio.sleep(retry_delay(_RETRY_BASE_S, failures))
        raise AssertionError("unreachable")

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, str]:
        async with self._http.request(
            method,
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={**self._headers, **({} if body is None else {"Content-Type": "application/json"})},
            timeout=_ANSWER_TIMEOUT,
        ) as response:
            return response.status, await response.text()

    def _refusal(self, path: str, status: int, value: Mapping[str, Any] | None) -> ProxyApiError:
        """The proxy's own error as it was, so that what to do about it is said once."""
        if value is None or not isinstance(value.get("detail"), str):
            what = f"{self.url}{path} does not answer as this version of llm-proxy does ({status})"
            return ProxyApiError(what, status=status, code="unknown")
        return ProxyApiError(
            f"{self.url}: {value['detail']}", status=status, code=str(value.get("code", "unknown"))
        )


def _path(session_id: str) -> str:
    return f"/sessions/{url_segment(session_id)}"


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
