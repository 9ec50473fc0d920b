"""What a trainer does, as steps: each call once for both clients."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from .api import Api, quoted
from .forest import TokenForest
from .rows import Row, rows_of
from .steps import Steps

#: One of the proxy's long polls: shorter than a silent connection is borne.
_POLL_S = 30.0

Numbers = Mapping[str, Mapping[str, Sequence[float | None]]]


class SessionCalls:
    """Of one session."""

    def __init__(self, api: Api, session_id: str, agent_key: str | None) -> None:
        self.api = api
        self.session_id = session_id
        self.agent_key = agent_key

    def base_url(self) -> str:
        """What an OpenAI client of the agent is given."""
        return f"{self.api.url}/{quoted(self.session_id)}/v1"

    def info(self) -> Steps[dict[str, Any]]:
        """The session as it is listed, without its turns."""
        # A wait of no time is the one light read of a single session.
        answer: dict[str, Any] = yield from self.api.of_session(
            "GET", self.session_id, "/wait", params={"timeout_s": 0}
        )
        del answer["timed_out"]
        return answer

    def wait(self, timeout_s: float | None) -> Steps[dict[str, Any]]:
        """:raises TimeoutError: when it has not ended in time"""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _POLL_S if until is None else max(0.0, min(_POLL_S, until - time.monotonic()))
            answer: dict[str, Any] = yield from self.api.of_session(
                "GET", self.session_id, "/wait", params={"timeout_s": left}
            )
            if not answer.pop("timed_out"):
                return answer
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"session {self.session_id} has not ended within {timeout_s} s")

    def reward(
        self,
        reward: float,
        components: Mapping[str, float] | None,
        turns: Mapping[int | str, float] | None,
        lines: Mapping[str, float] | None,
    ) -> Steps[None]:
        """Sets the reward."""
        parts = {"components": components, "turns": turns, "lines": lines}
        given = {name: dict(part) for name, part in parts.items() if part is not None}
        yield from self.api.of_session(
            "POST", self.session_id, "/reward", json={"reward": float(reward), **given}
        )

    def end(self, how: str) -> Steps[dict[str, Any]]:
        """``complete``, ``abort`` or ``reset``."""
        answer: dict[str, Any] = yield from self.api.of_session("POST", self.session_id, f"/{how}")
        return answer

    def delete(self) -> Steps[bool]:
        """Whether it was there."""
        answer = yield from self.api.of_session("DELETE", self.session_id)
        return bool(answer["deleted"])

    def rows(self, options: Mapping[str, Any]) -> Steps[list[Row]]:
        """:raises ProxyApiError: ``session_not_found``"""
        asked = {name: value for name, value in options.items() if value not in (None, False, ())}
        if not isinstance(asked.get("details", ""), str):
            asked["details"] = ",".join(asked["details"])
        answer = yield from self.api.of_session(
            "GET", self.session_id, "/trajectories", params=query_of(asked)
        )
        return rows_of(answer)

    def forest(self, options: Mapping[str, Any]) -> Steps[TokenForest]:
        """:raises ProxyApiError: ``session_not_found``"""
        answer = yield from self.api.of_session("GET", self.session_id, "/forest", params=query_of(options))
        return TokenForest.of(answer)

    def add(self, turns: Numbers, teacher: str | None) -> Steps[int]:
        """How many turns have them now."""
        body = {"turns": turns, **({} if teacher is None else {"teacher": teacher})}
        answer = yield from self.api.of_session("POST", self.session_id, "/details", json=body)
        return int(answer["turns"])

    def score(self, model: str | None, teacher: str | None) -> Steps[dict[str, Any]]:
        """Lets a teacher read it."""
        names = {"model": model, "teacher": teacher}
        body = {name: value for name, value in names.items() if value is not None}
        answer: dict[str, Any] = yield from self.api.of_session("POST", self.session_id, "/score", json=body)
        return answer


def create(api: Api, session_id: str | None, fields: Mapping[str, Any]) -> Steps[SessionCalls]:
    """Creates a session, or finds the one of this id."""
    body = {name: value for name, value in fields.items() if value is not None}
    if session_id is not None:
        body["session_id"] = session_id
    # Without an id it would be another session each time.
    answer = yield from api.call("POST", "/sessions", json=body, again=session_id is not None)
    return SessionCalls(api, answer["session_id"], answer.get("agent_key"))


def sessions(api: Api, filters: Mapping[str, Any]) -> Steps[tuple[list[dict[str, Any]], str | None]]:
    """One page, and the cursor of the next one."""
    answer = yield from api.call("GET", "/sessions", params=query_of(filters))
    return answer["sessions"], answer["next_cursor"]


def groups(api: Api, by: str, filters: Mapping[str, Any]) -> Steps[list[dict[str, Any]]]:
    """Sessions by a value of their metadata."""
    answer = yield from api.call("GET", "/groups", params={"by": by, **query_of(filters)})
    found: list[dict[str, Any]] = answer["groups"]
    return found


def forest(api: Api, filters: Mapping[str, Any]) -> Steps[TokenForest]:
    """Of the sessions that match."""
    answer = yield from api.call("GET", "/forest", params=query_of(filters))
    return TokenForest.of(answer)


def query_of(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Filters as parameters: ``metadata`` is a mapping there, and each of its texts means text."""
    metadata = filters.get("metadata") or {}
    query = {name: value for name, value in filters.items() if name != "metadata"}
    for name, value in metadata.items():
        query[f"metadata.{name}"] = json.dumps(value)
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}


def pause(api: Api, drain_timeout_s: float) -> Steps[bool]:
    """Whether no call runs any more."""
    timeout = httpx.Timeout(drain_timeout_s + 30, connect=10, pool=None)
    asked = {"drain_timeout_s": drain_timeout_s}
    answer = yield from api.call("POST", "/admin/pause", params=asked, timeout=timeout)
    return bool(answer["drained"])


def resume(api: Api) -> Steps[None]:
    """Serves calls again."""
    yield from api.call("POST", "/admin/resume")


def weight_version(api: Api) -> Steps[int | str | None]:
    """What was announced last."""
    answer = yield from api.call("GET", "/admin/weight_version")
    version: int | str | None = answer["weight_version"]
    return version


def announce(api: Api, version: int | str | None) -> Steps[None]:
    """Says which weights the engines have now."""
    yield from api.call("POST", "/admin/weight_version", json={"weight_version": version})


def with_id(rollout: Mapping[str, Any]) -> dict[str, Any]:
    """A rollout that can be joined again."""
    return {"rollout_id": str(uuid.uuid4()), **rollout}
