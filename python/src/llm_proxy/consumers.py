"""How the processes of an asynchronous trainer share completed sessions (docs/consumers.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from .consumer_calls import ConsumerCalls, Fetched, FetchedLease
from .rows import Row
from .steps import run, run_async


class _LeaseFacts:
    """What is known of a lease without asking."""

    def __init__(self, calls: ConsumerCalls, fetched: FetchedLease) -> None:
        self._calls = calls
        self._fetched = fetched

    @property
    def id(self) -> str:
        """Its name at the proxy."""
        return self._fetched.lease_id

    @property
    def sessions(self) -> Sequence[Fetched]:
        """In the order in which they were completed; those of a group one after the other."""
        return self._fetched.sessions

    @property
    def discarded(self) -> Mapping[str, int]:
        """How many sessions ``min_weight_version`` left out, as ``stale`` and as ``unversioned``."""
        return self._fetched.discarded

    @property
    def rows(self) -> list[Row]:
        """Of all its sessions."""
        return [row for session in self.sessions for row in session.rows]

    def __len__(self) -> int:
        return len(self.sessions)

    def _body(self, **more: Any) -> dict[str, Any]:
        return {"lease_id": self.id, "session_ids": [one.session_id for one in self.sessions], **more}


class Lease(_LeaseFacts):
    """Sessions that no other process of the trainer gets for a while."""

    def __init__(self, http: httpx.Client, calls: ConsumerCalls, fetched: FetchedLease) -> None:
        super().__init__(calls, fetched)
        self._http = http

    def ack(self) -> list[str]:
        """Says that they were trained on: they are never given again.

        :returns: the sessions of which it was too late, because another process has them by now
        """
        return run(self._http, self._calls.change("ack", self._body()))["lost"]

    def extend(self, lease_s: float = 1800) -> list[str]:
        """Keeps them for so long from now.

        :returns: the sessions that another process has by now
        """
        return run(self._http, self._calls.change("extend", self._body(lease_s=lease_s)))["lost"]

    def release(self) -> None:
        """Gives them back: the next one who fetches gets them."""
        run(self._http, self._calls.change("release", self._body()))


class AsyncLease(_LeaseFacts):
    """As :class:`Lease`, in an event loop."""

    def __init__(self, http: httpx.AsyncClient, calls: ConsumerCalls, fetched: FetchedLease) -> None:
        super().__init__(calls, fetched)
        self._http = http

    async def ack(self) -> list[str]:
        """Says that they were trained on: they are never given again.

        :returns: the sessions of which it was too late, because another process has them by now
        """
        return (await run_async(self._http, self._calls.change("ack", self._body())))["lost"]

    async def extend(self, lease_s: float = 1800) -> list[str]:
        """Keeps them for so long from now.

        :returns: the sessions that another process has by now
        """
        return (await run_async(self._http, self._calls.change("extend", self._body(lease_s=lease_s))))[
            "lost"
        ]

    async def release(self) -> None:
        """Gives them back: the next one who fetches gets them."""
        await run_async(self._http, self._calls.change("release", self._body()))


class Consumer:
    """A name under which the processes of a trainer share completed sessions; any number may use it at once."""

    def __init__(self, http: httpx.Client, calls: ConsumerCalls) -> None:
        self._http = http
        self._calls = calls

    def fetch(
        self,
        limit: int = 1,
        *,
        wait_s: float = 0,
        lease_s: float = 1800,
        min_weight_version: float | None = None,
        lease_id: str | None = None,
        **rows: Any,
    ) -> Lease:
        """Leases the sessions that come next, with their rows.

        :param limit: how many sessions, or groups, at most
        :param wait_s: how long to wait for the first; a lease of nothing when the time is up
        :param min_weight_version: what has an older token, or one of unknown age, is discarded
        :param lease_id: of a lease whose answer was lost: what it has comes first
        :param rows: parameters of docs/http-api.md, "Trajectories"
        """
        options = {"limit": limit, "lease_s": lease_s, "min_weight_version": min_weight_version, **rows}
        fetched = run(self._http, self._calls.fetch(wait_s, lease_id, options))
        return Lease(self._http, self._calls, fetched)

    def release(self) -> list[str]:
        """Ends all leases of the consumer, as after a crash: what is not acknowledged is given again.

        :returns: the sessions
        """
        return run(self._http, self._calls.change("release", {}))["released"]

    def info(self) -> dict[str, Any]:
        """Its settings, and how many sessions are ``available``, ``leased`` and ``acknowledged``."""
        return run(self._http, self._calls.info())

    def delete(self) -> bool:
        """Removes it; sessions stay.

        :returns: whether it was there
        """
        return run(self._http, self._calls.delete())


class AsyncConsumer:
    """As :class:`Consumer`, in an event loop."""

    def __init__(self, http: httpx.AsyncClient, calls: ConsumerCalls) -> None:
        self._http = http
        self._calls = calls

    async def fetch(
        self,
        limit: int = 1,
        *,
        wait_s: float = 0,
        lease_s: float = 1800,
        min_weight_version: float | None = None,
        lease_id: str | None = None,
        **rows: Any,
    ) -> AsyncLease:
        """Leases the sessions that come next, with their rows.

        :param limit: how many sessions, or groups, at most
        :param wait_s: how long to wait for the first; a lease of nothing when the time is up
        :param min_weight_version: what has an older token, or one of unknown age, is discarded
        :param lease_id: of a lease whose answer was lost: what it has comes first
        :param rows: parameters of docs/http-api.md, "Trajectories"
        """
        options = {"limit": limit, "lease_s": lease_s, "min_weight_version": min_weight_version, **rows}
        fetched = await run_async(self._http, self._calls.fetch(wait_s, lease_id, options))
        return AsyncLease(self._http, self._calls, fetched)

    async def release(self) -> list[str]:
        """Ends all leases of the consumer, as after a crash: what is not acknowledged is given again.

        :returns: the sessions
        """
        return (await run_async(self._http, self._calls.change("release", {})))["released"]

    async def info(self) -> dict[str, Any]:
        """Its settings, and how many sessions are ``available``, ``leased`` and ``acknowledged``."""
        return await run_async(self._http, self._calls.info())

    async def delete(self) -> bool:
        """Removes it; sessions stay.

        :returns: whether it was there
        """
        return await run_async(self._http, self._calls.delete())
