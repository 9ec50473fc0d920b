"""Consumers, with which the processes of an asynchronous trainer share completed sessions (docs/consumers.md)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .api import POLL_S, Api, row_options
from .rows import Row, parse_rows
from .steps import Loop, Steps, Threads, call


@dataclass(frozen=True)
class Fetched:
    """A completed session that was fetched."""

    session_id: str
    rows: Sequence[Row]
    reward: float | None
    metadata: Mapping[str, Any]
    #: The number of its leases, including this one.
    deliveries: int
    #: All fields of the proxy's response except its rows.
    fields: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class _FetchedLease:
    lease_id: str
    sessions: Sequence[Fetched]
    discarded: Mapping[str, int]


class ConsumerApi:
    """The API of a consumer; all requests may be repeated."""

    def __init__(self, api: Api, name: str, run: str | None) -> None:
        self._api = api
        self._path = f"/consumers/{name}"
        self._params = {"run": run}

    def ask(self, method: str, route: str = "", body: Mapping[str, Any] | None = None) -> Steps[Any]:
        """Sends a request and returns the JSON of the response."""
        return self._api.call(method, self._path + route, params=self._params, json=body)


class _LeaseCalls:
    """The methods that both kinds of leases share."""

    def __init__(self, http: Any, api: ConsumerApi, fetched: _FetchedLease) -> None:
        self._http = http
        self._api = api
        self._fetched = fetched

    @property
    def id(self) -> str:
        """The lease's id at the proxy."""
        return self._fetched.lease_id

    @property
    def sessions(self) -> Sequence[Fetched]:
        """The sessions in the order of their completion; those of a group are adjacent."""
        return self._fetched.sessions

    @property
    def discarded(self) -> Mapping[str, int]:
        """The numbers of discarded sessions: ``stale``, ``unversioned``, or of ``incomplete`` groups."""
        return self._fetched.discarded

    @property
    def rows(self) -> list[Row]:
        """Returns the rows of all its sessions."""
        return [row for session in self.sessions for row in session.rows]

    def __len__(self) -> int:
        return len(self.sessions)

    @call
    def ack(self) -> Steps[list[str]]:
        """Acknowledges the sessions: they are not delivered again.

        :returns: the sessions whose lease had expired and that another process has leased
        """
        return self._change("ack")

    @call
    def extend(self, lease_s: float = 1800) -> Steps[list[str]]:
        """Extends the lease, from now on.

        :returns: the sessions that another process has leased
        """
        return self._change("extend", lease_s=lease_s)

    @call
    def release(self) -> Steps[None]:
        """Releases the sessions: they are delivered to the next process that fetches."""
        yield from self._change("release")

    def _change(self, how: str, **more: Any) -> Steps[list[str]]:
        body = {"lease_id": self.id, "session_ids": [one.session_id for one in self.sessions], **more}
        answer = yield from self._api.ask("POST", f"/{how}", body)
        lost: list[str] = answer.get("lost", [])
        return lost


class Lease(_LeaseCalls, Threads):
    """Sessions that are leased to this process of the trainer."""


class AsyncLease(_LeaseCalls, Loop):
    """Same as :class:`Lease`, for an event loop."""


L = TypeVar("L", Lease, AsyncLease)


class _ConsumerCalls(Generic[L]):
    """The methods that both kinds of consumers share."""

    def __init__(self, http: Any, api: ConsumerApi) -> None:
        self._http = http
        self._api = api

    @call
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

        :param limit: maximum number of sessions, or groups
        :param wait_s: how long to wait for the first; after this time, the lease is empty
        :param min_weight_version: sessions with an older token, or one of unknown version, are discarded
        :param lease_id: id of a lease whose response was lost: its sessions come first
        :param rows: parameters of docs/http-api.md, "Trajectories"
        """
        options = {"limit": limit, "lease_s": lease_s, "min_weight_version": min_weight_version, **rows}
        # The id is set here, so that the request can be repeated if its response is lost.
        body = {**row_options(options), "lease_id": lease_id or str(uuid.uuid4())}
        until = time.monotonic() + wait_s
        discarded = {"stale": 0, "unversioned": 0, "incomplete": 0}
        while True:
            left = max(0.0, until - time.monotonic())
            answer = yield from self._api.ask("POST", "/fetch", {**body, "wait_s": min(POLL_S, left)})
            for why, count in answer["discarded"].items():
                discarded[why] = discarded.get(why, 0) + count
            discarded["incomplete"] += answer.get("incomplete", 0)
            if answer["sessions"] or left <= POLL_S:
                sessions = [_fetched(one) for one in answer["sessions"]]
                return self._lease(_FetchedLease(answer["lease_id"], sessions, discarded))

    @call
    def release(self) -> Steps[list[str]]:
        """Ends all leases of the consumer, for example after a crash: unacknowledged sessions are delivered again.

        :returns: the sessions
        """
        answer = yield from self._api.ask("POST", "/release", {})
        released: list[str] = answer["released"]
        return released

    @call
    def info(self) -> Steps[dict[str, Any]]:
        """Returns its settings, and the numbers of ``available``, ``leased`` and ``acknowledged`` sessions."""
        return self._api.ask("GET")

    @call
    def delete(self) -> Steps[bool]:
        """Deletes the consumer; sessions stay.

        :returns: whether it existed
        """
        answer = yield from self._api.ask("DELETE")
        return bool(answer["status"] == "deleted")

    def _lease(self, fetched: _FetchedLease) -> L:
        raise NotImplementedError


class Consumer(_ConsumerCalls[Lease], Threads):
    """A name under which the processes of a trainer share completed sessions; any number may use it concurrently."""

    def _lease(self, fetched: _FetchedLease) -> Lease:
        return Lease(self._http, self._api, fetched)


class AsyncConsumer(_ConsumerCalls[AsyncLease], Loop):
    """Same as :class:`Consumer`, for an event loop."""

    def _lease(self, fetched: _FetchedLease) -> AsyncLease:
        return AsyncLease(self._http, self._api, fetched)


def _fetched(session: Mapping[str, Any]) -> Fetched:
    fields = {name: value for name, value in session.items() if name != "trajectories"}
    copied = ("session_id", "reward", "metadata", "deliveries")
    return Fetched(rows=parse_rows(session), fields=fields, **{name: session[name] for name in copied})
