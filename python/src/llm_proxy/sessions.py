"""One rollout, for threads and for event loops."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from .api import POLL_S, Api, build_query, quoted, row_options, without_none
from .forest import TokenForest
from .rows import Row, parse_rows
from .steps import Loop, Steps, Threads, call

Numbers = Mapping[str, Mapping[str, Sequence[float | None]]]


class _SessionCalls:
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
        return f"{self._api.url}/{quoted(self._id)}/v1"

    @property
    def anthropic_url(self) -> str:
        """The base URL for an Anthropic or a Gemini client, which appends its API version itself."""
        return self.base_url.removesuffix("/v1")

    @property
    def agent_key(self) -> str | None:
        """The API key for the agent; on a proxy without keys the encoded session id, because SDKs require a key.

        None for a session that this client did not create.
        """
        return self._agent_key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @call
    def info(self) -> Steps[dict[str, Any]]:
        """Returns the session's fields, without its turns."""
        # A wait with timeout 0 is the cheapest read of a single session.
        answer: dict[str, Any] = yield from self._ask("GET", "/wait", params={"timeout_s": 0})
        del answer["timed_out"]
        return answer

    @call
    def wait(self, timeout_s: float | None = None) -> Steps[dict[str, Any]]:
        """Waits until the session is completed or aborted, without limit by default.

        :raises TimeoutError: if it has not ended in time
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = POLL_S if until is None else max(0.0, min(POLL_S, until - time.monotonic()))
            answer: dict[str, Any] = yield from self._ask("GET", "/wait", params={"timeout_s": left})
            if not answer.pop("timed_out"):
                return answer
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"session {self._id} has not ended within {timeout_s} s")

    @call
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

        :param components: named parts of it, for information
        :param turns: rewards of single turns, by index or id
        :param agent_roles: rewards for the rows of an agent role (docs/lines.md)
        :param lines: deprecated: the former name of ``agent_roles``, until 0.3.0
        """
        # Sent by its former name until 0.3.0: proxies of 0.1.0 reject the present one.
        parts = {
            "components": components,
            "turns": turns,
            "lines": lines if agent_roles is None else agent_roles,
        }
        given = {name: dict(part) for name, part in parts.items() if part is not None}
        yield from self._ask("POST", "/reward", json={"reward": float(reward), **given})

    @call
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
        body: dict[str, Any] = _marks(own) if turns is None else {**_marks(own), "turns": {}}
        for turn, marks in (turns or {}).items():
            body["turns"][turn] = _marks(marks)
        answer: dict[str, Any] = yield from self._ask("PATCH", json=body)
        return answer

    @call
    def complete(self) -> Steps[dict[str, Any]]:
        """Completes the session. Later requests are rejected."""
        return self._end("complete")

    @call
    def abort(self) -> Steps[dict[str, Any]]:
        """Aborts the session."""
        return self._end("abort")

    @call
    def reset(self) -> Steps[dict[str, Any]]:
        """Deletes its turns, its reward and its labels, and opens it again."""
        return self._end("reset")

    @call
    def delete(self) -> Steps[bool]:
        """Deletes the session and its turns.

        :returns: whether it existed
        """
        answer = yield from self._ask("DELETE")
        return bool(answer["deleted"])

    @call
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
        """Returns its rows for training; parameters are those of docs/http-api.md, "Trajectories"."""
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
        answer = yield from self._ask("GET", "/trajectories", params=build_query(row_options(options)))
        return parse_rows(answer)

    @call
    def forest(self, *, side_calls: bool = False, rejected: bool = False) -> Steps[TokenForest]:
        """Returns its rows with each token once, for packing with tree attention."""
        options = {"side_calls": side_calls, "rejected": rejected}
        answer = yield from self._ask("GET", "/forest", params=build_query(options))
        return TokenForest.of(answer)

    @call
    def export(self, format: str, /, **options: Any) -> Steps[list[dict[str, Any]]]:  # noqa: A002
        """Exports it in a format of other tools (docs/load-rows.md#formats-of-other-tools): ``sft``, ``training_trace``
        or ``atif``.

        :param options: options of its rows, such as ``select``
        """
        query = build_query({"format": format, **options})
        found: list[dict[str, Any]] = yield from self._ask("GET", "/export", params=query, lines=True)
        return found

    @call
    def add(self, turns: Numbers, *, teacher: str | None = None) -> Steps[int]:
        """Stores trainer data for its tokens, replacing earlier values (docs/details.md).

        :param turns: by index or id, the result of :meth:`Row.of_turns`
        :param teacher: name of the teacher of the ``teacher_logprobs``
        :returns: the number of turns that now have them
        """
        body = without_none({"turns": turns, "teacher": teacher})
        answer = yield from self._ask("POST", "/details", json=body)
        return int(answer["turns"])

    @call
    def score(self, *, model: str | None = None, teacher: str | None = None) -> Steps[dict[str, Any]]:
        """Scores the session with a teacher model and stores the logprobs (docs/details.md).

        :param model: only an engine that lists it is used; default: any
        :param teacher: the name under which they are stored; default: the model's
        """
        body = without_none({"model": model, "teacher": teacher})
        answer: dict[str, Any] = yield from self._ask("POST", "/score", json=body)
        return answer

    def _end(self, how: str) -> Steps[dict[str, Any]]:
        answer: dict[str, Any] = yield from self._ask("POST", f"/{how}")
        return answer

    def _end_of_block(self, error: type[BaseException] | None) -> Steps[dict[str, Any]]:
        return self._end("complete" if error is None else "abort")

    def _ask(self, method: str, route: str = "", **options: Any) -> Steps[Any]:
        return self._api.call(method, f"/sessions/{quoted(self._id)}{route}", **options)


def _marks(given: Mapping[str, Any]) -> dict[str, Any]:
    marks = without_none(given)
    return {**marks, "note": marks["note"] or None} if "note" in marks else marks


class Session(_SessionCalls, Threads):
    """One rollout. As a context manager, it is completed at the end of the block, or aborted by an exception."""

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._end_of_block(kind))


class AsyncSession(_SessionCalls, Loop):
    """Same as :class:`Session`, for an event loop."""

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._do(self._end_of_block(kind))
