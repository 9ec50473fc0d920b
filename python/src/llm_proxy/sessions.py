"""A session, for threads and for event loops."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from .api import POLL_S, Api, build_query, build_row_query, omit_none, quote_id
from .forest import TokenForest
from .rows import Row, parse_rows
from .steps import AsyncRunner, Steps, SyncRunner, api_method

Numbers = Mapping[str, Mapping[str, Sequence[float | None]]]


class _SessionMethods:
    """The methods that both kinds of sessions share."""

    def __init__(self, http: Any, api: Api, session_id: str, agent_key: str | None) -> None:
        self._http = http
        self._api = api
        self._id = session_id
        self._agent_key = agent_key

    @property
    def id(self) -> str:
        """The session's id."""
        return self._id

    @property
    def base_url(self) -> str:
        """The base URL for the agent's OpenAI client."""
        return f"{self._api.url}/{quote_id(self._id)}/v1"

    @property
    def anthropic_url(self) -> str:
        """The base URL for an Anthropic or Gemini client, which appends the API version itself."""
        return self.base_url.removesuffix("/v1")

    @property
    def agent_key(self) -> str | None:
        """The API key for the agent; ``None`` for a session that this client did not create.

        For a proxy without keys, it is the encoded session id, because SDKs require a key.
        """
        return self._agent_key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @api_method
    def info(self) -> Steps[dict[str, Any]]:
        """Returns the session's fields, without its turns."""
        # The proxy has no route for a session without its turns, but a wait with timeout 0 returns that.
        response: dict[str, Any] = yield from self._send("GET", "/wait", params={"timeout_s": 0})
        del response["timed_out"]
        return response

    @api_method
    def wait(self, timeout_s: float | None = None) -> Steps[dict[str, Any]]:
        """Waits until the session is completed or aborted; there is no limit by default.

        :raises TimeoutError: if it has not ended after ``timeout_s`` seconds
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = POLL_S if until is None else max(0.0, min(POLL_S, until - time.monotonic()))
            response: dict[str, Any] = yield from self._send("GET", "/wait", params={"timeout_s": left})
            if not response.pop("timed_out"):
                return response
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"session {self._id} has not ended within {timeout_s} s")

    @api_method
    def reward(
        self,
        reward: float,
        *,
        components: Mapping[str, float] | None = None,
        turns: Mapping[int | str, float] | None = None,
        agent_roles: Mapping[str, float] | None = None,
        lines: Mapping[str, float] | None = None,
    ) -> Steps[None]:
        """Sets the reward, replacing an earlier one.

        :param components: named components of the reward, for information
        :param turns: rewards of single turns, by index or id
        :param agent_roles: rewards for the rows of an agent role (docs/lines.md)
        :param lines: deprecated: the former name of ``agent_roles``, until 0.3.0
        """
        # ``agent_roles`` is sent under its former name until 0.3.0, because proxies of 0.1.0 reject the new one.
        parts = {
            "components": components,
            "turns": turns,
            "lines": lines if agent_roles is None else agent_roles,
        }
        set_parts = {name: dict(part) for name, part in parts.items() if part is not None}
        yield from self._send("POST", "/reward", json={"reward": float(reward), **set_parts})

    @api_method
    def mark(
        self,
        *,
        labels: Sequence[str] | None = None,
        note: str | None = None,
        turns: Mapping[int | str, Mapping[str, Any]] | None = None,
    ) -> Steps[dict[str, Any]]:
        """Sets labels and notes; omitted ones stay unchanged.

        :param labels: all labels; an empty list removes them
        :param note: an empty text removes it
        :param turns: ``labels`` and ``note`` of single turns, by index or id
        :returns: the session's fields
        """
        own = {"labels": labels, "note": note}
        body: dict[str, Any] = _build_labels(own) if turns is None else {**_build_labels(own), "turns": {}}
        for turn, labeled in (turns or {}).items():
            body["turns"][turn] = _build_labels(labeled)
        response: dict[str, Any] = yield from self._send("PATCH", json=body)
        return response

    @api_method
    def complete(self) -> Steps[dict[str, Any]]:
        """Completes the session. Later requests are rejected."""
        return self._end("complete")

    @api_method
    def abort(self) -> Steps[dict[str, Any]]:
        """Aborts the session."""
        return self._end("abort")

    @api_method
    def reset(self) -> Steps[dict[str, Any]]:
        """Deletes the turns, reward and labels of the session, and makes it active again."""
        return self._end("reset")

    @api_method
    def delete(self) -> Steps[bool]:
        """Deletes the session and its turns.

        :returns: whether it existed
        """
        response = yield from self._send("DELETE")
        return bool(response["deleted"])

    @api_method
    def rows(
        self,
        *,
        prompt_length: int | None = None,
        response_length: int | None = None,
        select: str = "all",
        side_calls: bool = False,
        rejected: bool = False,
        finished_only: bool = False,
        per_turn: bool = False,
        mask_stale_tokens: bool = False,
        details: str | Sequence[str] = (),
    ) -> Steps[list[Row]]:
        """Returns the rows of the session for training; docs/http-api.md, "Trajectories", explains the parameters."""
        options = {
            "prompt_length": prompt_length,
            "response_length": response_length,
            "select": select,
            "side_calls": side_calls,
            "rejected": rejected,
            "finished_only": finished_only,
            "per_turn": per_turn,
            "mask_stale_tokens": mask_stale_tokens,
            "details": details,
        }
        response = yield from self._send("GET", "/trajectories", params=build_query(build_row_query(options)))
        return parse_rows(response)

    @api_method
    def forest(self, *, side_calls: bool = False, rejected: bool = False) -> Steps[TokenForest]:
        """Returns the rows of the session with each token once, to be packed for tree attention."""
        options = {"side_calls": side_calls, "rejected": rejected}
        response = yield from self._send("GET", "/forest", params=build_query(options))
        return TokenForest.of(response)

    @api_method
    def export(self, format: str, /, **options: Any) -> Steps[list[dict[str, Any]]]:  # noqa: A002
        """Exports the session in a format of other tools (docs/load-rows.md#formats-of-other-tools).

        :param format: ``sft``, ``training_trace`` or ``atif``
        :param options: options of rows, such as ``select``
        """
        query = build_query({"format": format, **options})
        found: list[dict[str, Any]] = yield from self._send("GET", "/export", params=query, lines=True)
        return found

    @api_method
    def add(self, turns: Numbers, *, teacher: str | None = None) -> Steps[int]:
        """Stores trainer data for tokens of the session and replaces earlier values (docs/details.md).

        :param turns: values by index or id of the turn, as :meth:`Row.of_turns` returns them
        :param teacher: the name of the teacher, for ``teacher_logprobs``
        :returns: the number of turns that have the data
        """
        body = omit_none({"turns": turns, "teacher": teacher})
        response = yield from self._send("POST", "/details", json=body)
        return int(response["turns"])

    @api_method
    def score(self, *, model: str | None = None, teacher: str | None = None) -> Steps[dict[str, Any]]:
        """Scores the session with a teacher model and stores the logprobs (docs/details.md).

        :param model: the model that the engine must serve; default: any
        :param teacher: the name under which the logprobs are stored; default: the name of the model
        """
        body = omit_none({"model": model, "teacher": teacher})
        response: dict[str, Any] = yield from self._send("POST", "/score", json=body)
        return response

    def _end(self, how: str) -> Steps[dict[str, Any]]:
        response: dict[str, Any] = yield from self._send("POST", f"/{how}")
        return response

    def _end_block(self, error: type[BaseException] | None) -> Steps[dict[str, Any]]:
        return self._end("complete" if error is None else "abort")

    def _send(self, method: str, route: str = "", **options: Any) -> Steps[Any]:
        return self._api.send(method, f"/sessions/{quote_id(self._id)}{route}", **options)


def _build_labels(given: Mapping[str, Any]) -> dict[str, Any]:
    labels = omit_none(given)
    return {**labels, "note": labels["note"] or None} if "note" in labels else labels


class Session(_SessionMethods, SyncRunner):
    """A session. As a context manager, it is completed at the end of the block, or aborted after an exception."""

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run_steps(self._end_block(kind))


class AsyncSession(_SessionMethods, AsyncRunner):
    """A session for an event loop, otherwise like :class:`Session`."""

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._run_steps(self._end_block(kind))
