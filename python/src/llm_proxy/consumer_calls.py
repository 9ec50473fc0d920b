"""What a trainer does with a consumer, as steps (docs/consumers.md)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .api import Api
from .rows import Row, rows_of
from .steps import Steps

#: One of the proxy's long polls: shorter than a silent connection is borne.
_POLL_S = 30.0


@dataclass(frozen=True)
class Fetched:
    """A completed session that was fetched."""

    session_id: str
    rows: Sequence[Row]
    reward: float | None
    metadata: Mapping[str, Any]
    #: How often it was leased; 1: never before.
    deliveries: int
    #: All that the proxy says of it but its rows.
    fields: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class FetchedLease:
    """What one fetch leased."""

    lease_id: str
    sessions: Sequence[Fetched]
    #: How many sessions ``min_weight_version`` left out, as ``stale`` and as ``unversioned``.
    discarded: Mapping[str, int]


class ConsumerCalls:
    """Of one consumer."""

    def __init__(self, api: Api, name: str, run: str | None) -> None:
        self.api = api
        self.name = name
        self.run = run

    def create(self, settings: Mapping[str, Any]) -> Steps[None]:
        """Creates it, or finds it with the same settings."""
        yield from self._ask(
            "POST", "", {name: value for name, value in settings.items() if value is not None}
        )

    def info(self) -> Steps[dict[str, Any]]:
        """Its settings and counts."""
        answer: dict[str, Any] = yield from self._ask("GET", "")
        return answer

    def delete(self) -> Steps[bool]:
        """Whether it was there."""
        answer = yield from self._ask("DELETE", "")
        return bool(answer["status"] == "deleted")

    def fetch(self, wait_s: float, lease_id: str | None, options: Mapping[str, Any]) -> Steps[FetchedLease]:
        """A lease, perhaps of nothing."""
        # Its own name, so that an answer that is lost on the way is asked for again.
        body = {name: value for name, value in options.items() if value not in (None, False, ())}
        if not isinstance(body.get("details", ""), str):
            body["details"] = ",".join(body["details"])
        body["lease_id"] = lease_id or str(uuid.uuid4())
        until = time.monotonic() + wait_s
        discarded = {"stale": 0, "unversioned": 0}
        while True:
            left = max(0.0, until - time.monotonic())
            answer = yield from self._ask("POST", "/fetch", {**body, "wait_s": min(_POLL_S, left)})
            for why, count in answer["discarded"].items():
                discarded[why] += count
            if answer["sessions"] or left <= _POLL_S:
                return FetchedLease(
                    answer["lease_id"], [_fetched(one) for one in answer["sessions"]], discarded
                )

    def change(self, how: str, body: Mapping[str, Any]) -> Steps[dict[str, list[str]]]:
        """``ack``, ``extend`` or ``release``."""
        answer: dict[str, list[str]] = yield from self._ask("POST", f"/{how}", body)
        return answer

    def _ask(self, method: str, route: str, body: Mapping[str, Any] | None = None) -> Steps[Any]:
        """All of it may be asked twice."""
        answer = yield from self.api.call(
            method, f"/consumers/{self.name}{route}", params={"run": self.run}, json=body
        )
        return answer


def _fetched(session: Mapping[str, Any]) -> Fetched:
    fields = {name: value for name, value in session.items() if name != "trajectories"}
    told = ("session_id", "reward", "metadata", "deliveries")
    return Fetched(rows=rows_of(session), fields=fields, **{name: session[name] for name in told})
