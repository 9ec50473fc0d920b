"""Consumers: the processes of an asynchronous trainer share completed sessions through them (docs/consumers.md)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .api import POLL_S, Api, build_row_query
from .rows import Row, parse_rows
from .steps import AsyncRunner, Steps, SyncRunner, api_method


@dataclass(frozen=True)
class Fetched:
    """A completed session of a lease."""

    session_id: str
    rows: Sequence[Row]
    reward: float | None
    metadata: Mapping[str, Any]
    #: The number of times that the session was leased, including this lease.
    deliveries: int
    #: All fields of the proxy's response except its rows.
    fields: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class _FetchedLease:
    lease_id: str
    sessions: Sequence[Fetched]
    discarded: Mapping[str, int]


class ConsumerApi:
    """The HTTP API of a consumer. All its requests may be repeated."""

    def __init__(self, api: Api, name: str, run: str | None) -> None:
        self._api = api
        self._path = f"/consumers/{name}"
        self._params = {"run": run}

    def send(self, method: str, route: str = "", body: Mapping[str, Any] | None = None) -> Steps[Any]:
        """Sends a request and returns the JSON of the response."""
        return self._api.send(method, self._path + route, params=self._params, json=body)


class _LeaseMethods:
    """The methods that both kinds of leases share."""

    def __init__(self, http: Any, api: ConsumerApi, fetched: _FetchedLease) -> None:
        self._http = http
        self._api = api
        self._fetched = fetched

    @property
    def id(self) -> str:
        """The id of the lease."""
        return self._fetched.lease_id

    @property
    def sessions(self) -> Sequence[Fetched]:
        """The sessions in the order of their completion; those of a group are adjacent."""
        return self._fetched.sessions

    @property
    def discarded(self) -> Mapping[str, int]:
        """The numbers of discarded sessions by reason: ``stale``, ``unversioned``, ``incomplete``, ``damaged``."""
        return self._fetched.discarded

    @property
    def rows(self) -> list[Row]:
        """The rows of all its sessions."""
        return [row for session in self.sessions for row in session.rows]

    def __len__(self) -> int:
        return len(self.sessions)

    @api_method
    def ack(self) -> Steps[list[str]]:
        """Acknowledges the sessions: they are not delivered again.

        :returns: the ids of sessions that another process has leased since the lease expired
        """
        return self._post("ack")

    @api_method
    def extend(self, lease_s: float = 1800) -> Steps[list[str]]:
        """Extends the lease by ``lease_s`` seconds from now.

        :returns: the ids of sessions that another process has leased since the lease expired
        """
        return self._post("extend", lease_s=lease_s)

    @api_method
    def release(self) -> Steps[None]:
        """Releases the sessions, which the next process that fetches receives."""
        yield from self._post("release")

    def _post(self, how: str, **more: Any) -> Steps[list[str]]:
        body = {"lease_id": self.id, "session_ids": [one.session_id for one in self.sessions], **more}
        response = yield from self._api.send("POST", f"/{how}", body)
        lost: list[str] = response.get("lost", [])
        return lost


class Lease(_LeaseMethods, SyncRunner):
    """Sessions that are leased to this process of the trainer."""


class AsyncLease(_LeaseMethods, AsyncRunner):
    """A lease for an event loop, otherwise like :class:`Lease`."""


L = TypeVar("L", Lease, AsyncLease)


class _ConsumerMethods(Generic[L]):
    """The methods that both kinds of consumers share."""

    def __init__(self, http: Any, api: ConsumerApi) -> None:
        self._http = http
        self._api = api

    @api_method
    def fetch(
        self,
        /,
        limit: int = 1,
        *,
        wait_s: float = 0,
        lease_s: float = 1800,
        min_weight_version: float | None = None,
        lease_id: str | None = None,
        **rows: Any,
    ) -> Steps[L]:
        """Leases the next sessions, with their rows.

        :param limit: maximum number of sessions, or of groups
        :param wait_s: maximum time to wait for the first session; the lease is empty if none becomes available
        :param min_weight_version: sessions with a token of an older or unknown weight version are discarded
        :param lease_id: id of a lease whose response was lost; its sessions are returned first
        :param rows: parameters of docs/http-api.md, "Trajectories"
        """
        options = {"limit": limit, "lease_s": lease_s, "min_weight_version": min_weight_version, **rows}
        # The id is set here, so that the request can be repeated if its response is lost.
        body = {**build_row_query(options), "lease_id": lease_id or str(uuid.uuid4())}
        until = time.monotonic() + wait_s
        discarded = {"stale": 0, "unversioned": 0, "incomplete": 0, "damaged": 0}
        while True:
            left = max(0.0, until - time.monotonic())
            response = yield from self._api.send("POST", "/fetch", {**body, "wait_s": min(POLL_S, left)})
            for reason, count in response["discarded"].items():
                discarded[reason] = discarded.get(reason, 0) + count
            for reason in ("incomplete", "damaged"):
                discarded[reason] += response.get(reason, 0)
            if response["sessions"] or left <= POLL_S:
                sessions = [_parse_session(one) for one in response["sessions"]]
                return self._lease(_FetchedLease(response["lease_id"], sessions, discarded))

    @api_method
    def release(self) -> Steps[list[str]]:
        """Ends all leases of the consumer, for example after a crash: unacknowledged sessions are delivered again.

        :returns: the ids of these sessions
        """
        response = yield from self._api.send("POST", "/release", {})
        released: list[str] = response["released"]
        return released

    @api_method
    def info(self) -> Steps[dict[str, Any]]:
        """Returns its settings, and the numbers of ``available``, ``leased`` and ``acknowledged`` sessions."""
        return self._api.send("GET")

    @api_method
    def delete(self) -> Steps[bool]:
        """Deletes the consumer, but not its sessions.

        :returns: whether it existed
        """
        response = yield from self._api.send("DELETE")
        return bool(response["status"] == "deleted")

    def _lease(self, fetched: _FetchedLease) -> L:
        raise NotImplementedError


class Consumer(_ConsumerMethods[Lease], SyncRunner):
    """A name under which the processes of a trainer share completed sessions; any number may use it concurrently."""

    def _lease(self, fetched: _FetchedLease) -> Lease:
        return Lease(self._http, self._api, fetched)


class AsyncConsumer(_ConsumerMethods[AsyncLease], AsyncRunner):
    """A consumer for an event loop, otherwise like :class:`Consumer`."""

    def _lease(self, fetched: _FetchedLease) -> AsyncLease:
        return AsyncLease(self._http, self._api, fetched)


def _parse_session(session: Mapping[str, Any]) -> Fetched:
    fields = {name: value for name, value in session.items() if name != "trajectories"}
    copied = ("session_id", "reward", "metadata", "deliveries")
    return Fetched(rows=parse_rows(session), fields=fields, **{name: session[name] for name in copied})
