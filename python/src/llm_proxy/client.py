"""Clients of a proxy: one for threads, one for event loops."""

from __future__ import annotations

import os
import ssl
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import httpx

from .api import Api, build_query, get_open_key, omit_none
from .consumers import AsyncConsumer, Consumer, ConsumerApi
from .forest import TokenForest
from .rollouts import Rollouts
from .sessions import AsyncSession, Session
from .steps import AsyncRunner, Steps, SyncRunner, api_method

S = TypeVar("S", Session, AsyncSession)
C = TypeVar("C", Consumer, AsyncConsumer)


class _ClientMethods(Generic[S, C]):
    """The methods that both clients share."""

    def __init__(self, url: str | None, admin_key: str | None) -> None:
        urls = url or os.environ.get("PROXY_SERVER_URL")
        if not urls:
            raise ValueError("no proxy: pass a url, or set PROXY_SERVER_URL in the environment")
        key = admin_key or os.environ.get("LLM_PROXY_ADMIN_KEY") or None
        apis = [Api(part.strip(), key) for part in urls.split(",") if part.strip()]
        self._api = apis[0]
        self._rollouts = Rollouts(apis)

    @property
    def url(self) -> str:
        """The proxy's address."""
        return self._api.url

    @api_method
    def create(
        self,
        /,
        session_id: str | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        ttl_s: float | None = None,
        record: Sequence[str] | None = None,
        limits: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Steps[S]:
        """Creates a session, the record of one rollout. A session that exists is returned unchanged.

        :param session_id: default: the proxy chooses one
        :param fields: other fields of docs/http-api.md, "Creating and listing", for example ``policy``
        """
        body = {
            **fields,
            "session_id": session_id,
            "metadata": metadata,
            "sampling_params": sampling_params,
            "ttl_s": ttl_s,
            "record": record,
            "limits": limits,
        }
        # Without an id, each attempt would create another session.
        retry = session_id is not None
        response = yield from self._api.send("POST", "/sessions", json=omit_none(body), retry=retry)
        # A proxy without keys accepts a session's encoded id as its key; the SDKs of agents require a key.
        key = response.get("agent_key") or get_open_key(response["session_id"])
        return self._session(response["session_id"], key)

    def session(self, session_id: str) -> S:
        """Returns an existing session, without a request."""
        return self._session(session_id, None)

    @api_method
    def groups(self, /, by: str, **filters: Any) -> Steps[list[dict[str, Any]]]:
        """Returns sessions grouped by a metadata value, with counts and statistics of rewards."""
        response = yield from self._api.send("GET", "/groups", params={"by": by, **build_query(filters)})
        found: list[dict[str, Any]] = response["groups"]
        return found

    @api_method
    def forest(self, /, **filters: Any) -> Steps[TokenForest]:
        """Returns the rows of all matching sessions, with each token once; filters are those of :meth:`sessions`."""
        response = yield from self._api.send("GET", "/forest", params=build_query(filters))
        return TokenForest.of(response)

    @api_method
    def consumer(
        self,
        name: str,
        *,
        of_run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        group_by: str | None = None,
        group_size: int | None = None,
        group_timeout_s: float | None = None,
        rewarded: bool = False,
        since: float | None = None,
        hold_s: float | None = None,
    ) -> Steps[C]:
        """Creates a consumer, or finds the one with this name and these settings (docs/consumers.md).

        :param of_run: the run whose sessions it receives; default with the key of a run: that run
        :param metadata: it receives only sessions that have all of these values
        :param group_by: a metadata key; sessions with equal values are delivered together, ``group_size`` at a time
        :param group_timeout_s: time after the end of a group's last session at which an incomplete group is discarded
        :param rewarded: it receives sessions only once they have a reward
        :param since: it receives only sessions that ended at this time or later
        :param hold_s: time after their end for which unacknowledged sessions are not swept
        """
        settings = {
            "metadata": metadata,
            "group_by": group_by,
            "group_size": group_size,
            "group_timeout_s": group_timeout_s,
            "rewarded": rewarded,
            "since": since,
            "hold_s": hold_s,
        }
        api = ConsumerApi(self._api, name, of_run)
        yield from api.send("POST", body=omit_none(settings))
        return self._consumer(api)

    @api_method
    def pause(self, drain_timeout_s: float = 60) -> Steps[bool]:
        """Pauses requests, for example while weights are updated.

        :returns: whether all requests have ended; the proxy is paused in either case
        """
        timeout = httpx.Timeout(drain_timeout_s + 30, connect=10, pool=None)
        params = {"drain_timeout_s": drain_timeout_s}
        response = yield from self._api.send("POST", "/admin/pause", params=params, timeout=timeout)
        return bool(response["drained"])

    @api_method
    def resume(self) -> Steps[None]:
        """Resumes serving requests."""
        yield from self._api.send("POST", "/admin/resume")

    @api_method
    def weight_version(self) -> Steps[int | str | None]:
        """Returns the weight version that was last announced."""
        response = yield from self._api.send("GET", "/admin/weight_version")
        version: int | str | None = response["weight_version"]
        return version

    @api_method
    def announce_weights(self, version: int | str | None) -> Steps[None]:
        """Announces the engines' weight version, for turns of engines that do not report it."""
        yield from self._api.send("POST", "/admin/weight_version", json={"weight_version": version})

    @api_method
    def health(self) -> Steps[dict[str, Any]]:
        """Returns the health of the proxy and its engines."""
        return self._api.send("GET", "/health", retry=False)

    @api_method
    def rollout(self, rollout: Mapping[str, Any]) -> Steps[dict[str, Any]]:
        """Runs an agent on a task and waits for the result (docs/rollouts.md).

        The request is repeated for the same rollout if a connection breaks or a server restarts. If the caller is
        interrupted, the rollout is cancelled.

        :param rollout: the body of ``POST /rollouts``; with a ``rollout_id``, a running rollout is joined
        :returns: ``rows``, ``reward`` and other fields; a rollout whose agent failed still succeeds
        """
        return self._rollouts.run({"rollout_id": str(uuid.uuid4()), **rollout})

    @api_method
    def cancel(self, rollout_id: str) -> Steps[None]:
        """Cancels a running rollout; callers that wait for it receive a ``ProxyApiError``."""
        return self._rollouts.cancel(rollout_id)

    @api_method
    def call_off(self, rollout_id: str) -> Steps[None]:
        """Deprecated: the former name of :meth:`cancel`, until 0.3.0."""
        return self._rollouts.cancel(rollout_id)

    def _page(self, filters: Mapping[str, Any]) -> Steps[tuple[list[dict[str, Any]], str | None]]:
        """Returns one page of sessions, and the cursor of the next one."""
        response = yield from self._api.send("GET", "/sessions", params=build_query(filters))
        return response["sessions"], response["next_cursor"]

    def _session(self, session_id: str, agent_key: str | None) -> S:
        raise NotImplementedError

    def _consumer(self, api: ConsumerApi) -> C:
        raise NotImplementedError


class Client(_ClientMethods[Session, Consumer], SyncRunner):
    """A client of a proxy. Any number of threads may share it.

    Requests that may be repeated are retried for 30 seconds while the proxy is unavailable. All methods raise
    ``ProxyApiError``.

    :param url: URL of the proxy, or several separated by commas for rollouts; default: ``PROXY_SERVER_URL``
    :param admin_key: an admin key or the key of a run; default: ``LLM_PROXY_ADMIN_KEY``
    :param http: an httpx client with other settings; the caller closes it
    """

    def __init__(
        self, url: str | None = None, admin_key: str | None = None, *, http: httpx.Client | None = None
    ) -> None:
        _ClientMethods.__init__(self, url, admin_key)
        self._own = http is None
        self._http = http or httpx.Client(**_build_http_options())

    def sessions(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yields all sessions that match the filters of docs/http-api.md, page by page; ``metadata`` is a mapping."""
        cursor: str | None = None
        while True:
            page, cursor = self._run_steps(self._page({**filters, "cursor": cursor}))
            yield from page
            if cursor is None:
                return

    def close(self) -> None:
        """Closes the connections."""
        if self._own:
            self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _session(self, session_id: str, agent_key: str | None) -> Session:
        return Session(self._http, self._api, session_id, agent_key)

    def _consumer(self, api: ConsumerApi) -> Consumer:
        return Consumer(self._http, api)


class AsyncClient(_ClientMethods[AsyncSession, AsyncConsumer], AsyncRunner):
    """A client of a proxy for an event loop, otherwise like :class:`Client`.

    Cancelling a task in :meth:`rollout` cancels the rollout.
    """

    def __init__(
        self, url: str | None = None, admin_key: str | None = None, *, http: httpx.AsyncClient | None = None
    ) -> None:
        _ClientMethods.__init__(self, url, admin_key)
        self._own = http is None
        self._http = http or httpx.AsyncClient(**_build_http_options())

    async def sessions(self, **filters: Any) -> AsyncIterator[dict[str, Any]]:
        """Yields all sessions that match the filters of docs/http-api.md, page by page; ``metadata`` is a mapping."""
        cursor: str | None = None
        while True:
            page, cursor = await self._run_steps(self._page({**filters, "cursor": cursor}))
            for session in page:
                yield session
            if cursor is None:
                return

    async def close(self) -> None:
        """Closes the connections."""
        if self._own:
            await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    def _session(self, session_id: str, agent_key: str | None) -> AsyncSession:
        return AsyncSession(self._http, self._api, session_id, agent_key)

    def _consumer(self, api: ConsumerApi) -> AsyncConsumer:
        return AsyncConsumer(self._http, api)


def _build_http_options() -> dict[str, Any]:
    """Returns the options of the HTTP client.

    Connections are not limited, because each rollout waits on one. HTTP proxies of the environment are ignored, because
    requests stay in the cluster.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    return {"limits": limits, "trust_env": False, "verify": ssl.create_default_context()}
