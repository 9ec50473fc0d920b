"""Clients of a proxy, for threads and for event loops."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx

from . import calls
from .api import Api
from .calls import Numbers, SessionCalls
from .consumer_calls import ConsumerCalls
from .consumers import AsyncConsumer, Consumer
from .forest import TokenForest
from .rollouts import Rollouts
from .rows import Row
from .steps import run, run_async


class _SessionFacts:
    """What is known of a session without asking."""

    def __init__(self, made: SessionCalls) -> None:
        self._calls = made

    @property
    def id(self) -> str:
        """Its id."""
        return self._calls.session_id

    @property
    def base_url(self) -> str:
        """What an OpenAI client of the agent is given as its base URL."""
        return self._calls.base_url()

    @property
    def anthropic_url(self) -> str:
        """What an Anthropic or a Gemini client is given: these append their version themselves."""
        return self.base_url.removesuffix("/v1")

    @property
    def agent_key(self) -> str | None:
        """The API key for the agent, if the proxy gives keys."""
        return self._calls.agent_key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"


class Session(_SessionFacts):
    """One rollout. As a context it is completed at the end of the block, or aborted by what is raised in it."""

    def __init__(self, http: httpx.Client, made: SessionCalls) -> None:
        super().__init__(made)
        self._http = http

    def info(self) -> dict[str, Any]:
        """The session as it is listed, without its turns."""
        return run(self._http, self._calls.info())

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Waits until somebody has completed or aborted it; for ever, if need be.

        :raises TimeoutError: when it has not ended in time
        """
        return run(self._http, self._calls.wait(timeout_s))

    def reward(
        self,
        reward: float,
        *,
        components: Mapping[str, float] | None = None,
        turns: Mapping[int | str, float] | None = None,
        lines: Mapping[str, float] | None = None,
    ) -> None:
        """Sets the reward, in the place of an earlier one.

        :param components: named parts of it, for whoever looks
        :param turns: rewards of single turns, by index or id
        :param lines: rewards that the rows of a line have instead (docs/lines.md)
        """
        run(self._http, self._calls.reward(reward, components, turns, lines))

    def complete(self) -> dict[str, Any]:
        """Ends it well. Calls that come later are refused."""
        return run(self._http, self._calls.end("complete"))

    def abort(self) -> dict[str, Any]:
        """Ends it badly."""
        return run(self._http, self._calls.end("abort"))

    def reset(self) -> dict[str, Any]:
        """Forgets its turns and its reward, and opens it again."""
        return run(self._http, self._calls.end("reset"))

    def delete(self) -> bool:
        """Removes it and its turns.

        :returns: whether it was there
        """
        return run(self._http, self._calls.delete())

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
        details: str | Sequence[str] = (),
    ) -> list[Row]:
        """What it comes to as rows to train on; parameters are those of docs/http-api.md, "Trajectories"."""
        return run(
            self._http,
            self._calls.rows(
                {
                    "prompt_length": prompt_length,
                    "response_length": response_length,
                    "select": select,
                    "side_calls": side_calls,
                    "rejected": rejected,
                    "finished_only": finished_only,
                    "per_turn": per_turn,
                    "details": details,
                }
            ),
        )

    def forest(self, *, side_calls: bool = False, rejected: bool = False) -> TokenForest:
        """Its rows with each token once, to be packed for tree attention."""
        options = {"side_calls": side_calls, "rejected": rejected}
        return run(self._http, self._calls.forest(options))

    def add(self, turns: Numbers, *, teacher: str | None = None) -> int:
        """Keeps what the trainer knows of its tokens, in the place of what was there (docs/details.md).

        :param turns: by index or id, what :meth:`Row.of_turns` gives
        :param teacher: whose ``teacher_logprobs`` they are
        :returns: how many turns have them now
        """
        return run(self._http, self._calls.add(turns, teacher))

    def score(self, *, model: str | None = None, teacher: str | None = None) -> dict[str, Any]:
        """Lets a teacher read it, and keeps its logprobs (docs/details.md).

        :param model: only an engine that lists it reads; default: any
        :param teacher: the name to keep them under; default: the model's
        """
        return run(self._http, self._calls.score(model, teacher))

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._http, self._calls.end("complete" if kind is None else "abort"))


class AsyncSession(_SessionFacts):
    """As :class:`Session`, in an event loop."""

    def __init__(self, http: httpx.AsyncClient, made: SessionCalls) -> None:
        super().__init__(made)
        self._http = http

    async def info(self) -> dict[str, Any]:
        """The session as it is listed, without its turns."""
        return await run_async(self._http, self._calls.info())

    async def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Waits until somebody has completed or aborted it; for ever, if need be.

        :raises TimeoutError: when it has not ended in time
        """
        return await run_async(self._http, self._calls.wait(timeout_s))

    async def reward(
        self,
        reward: float,
        *,
        components: Mapping[str, float] | None = None,
        turns: Mapping[int | str, float] | None = None,
        lines: Mapping[str, float] | None = None,
    ) -> None:
        """Sets the reward, in the place of an earlier one.

        :param components: named parts of it, for whoever looks
        :param turns: rewards of single turns, by index or id
        :param lines: rewards that the rows of a line have instead (docs/lines.md)
        """
        await run_async(self._http, self._calls.reward(reward, components, turns, lines))

    async def complete(self) -> dict[str, Any]:
        """Ends it well. Calls that come later are refused."""
        return await run_async(self._http, self._calls.end("complete"))

    async def abort(self) -> dict[str, Any]:
        """Ends it badly."""
        return await run_async(self._http, self._calls.end("abort"))

    async def reset(self) -> dict[str, Any]:
        """Forgets its turns and its reward, and opens it again."""
        return await run_async(self._http, self._calls.end("reset"))

    async def delete(self) -> bool:
        """Removes it and its turns.

        :returns: whether it was there
        """
        return await run_async(self._http, self._calls.delete())

    async def rows(
        self,
        *,
        prompt_length: int | None = None,
        response_length: int | None = None,
        select: str = "all",
        side_calls: bool = False,
        rejected: bool = False,
        finished_only: bool = False,
        per_turn: bool = False,
        details: str | Sequence[str] = (),
    ) -> list[Row]:
        """What it comes to as rows to train on; parameters are those of docs/http-api.md, "Trajectories"."""
        return await run_async(
            self._http,
            self._calls.rows(
                {
                    "prompt_length": prompt_length,
                    "response_length": response_length,
                    "select": select,
                    "side_calls": side_calls,
                    "rejected": rejected,
                    "finished_only": finished_only,
                    "per_turn": per_turn,
                    "details": details,
                }
            ),
        )

    async def forest(self, *, side_calls: bool = False, rejected: bool = False) -> TokenForest:
        """Its rows with each token once, to be packed for tree attention."""
        options = {"side_calls": side_calls, "rejected": rejected}
        return await run_async(self._http, self._calls.forest(options))

    async def add(self, turns: Numbers, *, teacher: str | None = None) -> int:
        """Keeps what the trainer knows of its tokens, in the place of what was there (docs/details.md).

        :param turns: by index or id, what :meth:`Row.of_turns` gives
        :param teacher: whose ``teacher_logprobs`` they are
        :returns: how many turns have them now
        """
        return await run_async(self._http, self._calls.add(turns, teacher))

    async def score(self, *, model: str | None = None, teacher: str | None = None) -> dict[str, Any]:
        """Lets a teacher read it, and keeps its logprobs (docs/details.md).

        :param model: only an engine that lists it reads; default: any
        :param teacher: the name to keep them under; default: the model's
        """
        return await run_async(self._http, self._calls.score(model, teacher))

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await run_async(self._http, self._calls.end("complete" if kind is None else "abort"))


class _Proxy:
    """Whom a client asks."""

    def __init__(self, url: str | None, admin_key: str | None) -> None:
        where = url or os.environ.get("PROXY_SERVER_URL")
        if not where:
            raise ValueError("which proxy? give a url, or PROXY_SERVER_URL in the environment")
        key = admin_key or os.environ.get("LLM_PROXY_ADMIN_KEY") or None
        apis = [Api(part.strip(), key) for part in where.split(",") if part.strip()]
        self._api = apis[0]
        self._rollouts = Rollouts(apis)

    @property
    def url(self) -> str:
        """The proxy's address."""
        return self._api.url


def _options() -> dict[str, Any]:
    """Each rollout waits on a connection of its own. Proxies of the environment are not for a cluster's calls."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    return {"limits": limits, "trust_env": False, "verify": ssl.create_default_context()}


class Client(_Proxy):
    """A proxy, for threads: any number may use one client.

    Calls that may be made twice are made again for half a minute while the proxy is away. All raise ``ProxyApiError``.

    :param url: of the proxy, several with commas between them for rollouts; default: ``PROXY_SERVER_URL``
    :param admin_key: or the key of a run; default: ``LLM_PROXY_ADMIN_KEY``
    :param http: with settings of your own; it stays yours to close
    """

    def __init__(
        self, url: str | None = None, admin_key: str | None = None, *, http: httpx.Client | None = None
    ) -> None:
        super().__init__(url, admin_key)
        self._own = http is None
        self._http = http or httpx.Client(**_options())

    def create(
        self,
        session_id: str | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        ttl_s: float | None = None,
        record: Sequence[str] | None = None,
        limits: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Session:
        """Creates a session: one rollout. One that is there already is found, and not changed.

        :param session_id: default: the proxy makes one
        :param fields: others of docs/http-api.md, "Creating and listing", such as ``policy``
        """
        made = run(
            self._http,
            calls.create(
                self._api,
                session_id,
                {
                    **fields,
                    "metadata": metadata,
                    "sampling_params": sampling_params,
                    "ttl_s": ttl_s,
                    "record": record,
                    "limits": limits,
                },
            ),
        )
        return Session(self._http, made)

    def groups(self, by: str, **filters: Any) -> list[dict[str, Any]]:
        """Sessions by a value of their metadata, with counts and statistics of rewards."""
        return run(self._http, calls.groups(self._api, by, filters))

    def forest(self, **filters: Any) -> TokenForest:
        """The rows of all sessions that match, with each token once; filters are those of :meth:`sessions`."""
        return run(self._http, calls.forest(self._api, filters))

    def consumer(
        self,
        name: str,
        *,
        of_run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        group_by: str | None = None,
        group_size: int | None = None,
        rewarded: bool = False,
        since: float | None = None,
        hold_s: float | None = None,
    ) -> Consumer:
        """Creates a consumer, or finds the one of this name and these settings (docs/consumers.md).

        :param of_run: the run whose sessions it gets; with the key of a run, that one
        :param metadata: it gets only sessions that have each of these values
        :param group_by: a metadata key: sessions with one value come together, ``group_size`` at a time
        :param rewarded: it gets sessions when they have a reward
        :param since: it gets only sessions that ended then or later
        :param hold_s: how long after their end sessions are not swept, unless acknowledged
        """
        made = ConsumerCalls(self._api, name, of_run)
        settings = {
            "metadata": metadata,
            "group_by": group_by,
            "group_size": group_size,
            "rewarded": rewarded,
            "since": since,
            "hold_s": hold_s,
        }
        run(self._http, made.create(settings))
        return Consumer(self._http, made)

    def pause(self, drain_timeout_s: float = 60) -> bool:
        """Holds calls back, as while weights are replaced.

        :returns: whether no call runs any more; the pause holds in both cases
        """
        return run(self._http, calls.pause(self._api, drain_timeout_s))

    def resume(self) -> None:
        """Serves calls again."""
        run(self._http, calls.resume(self._api))

    def weight_version(self) -> int | str | None:
        """What was announced last."""
        return run(self._http, calls.weight_version(self._api))

    def announce_weights(self, version: int | str | None) -> None:
        """Says which weights the engines have now, for the turns of those that do not tell."""
        run(self._http, calls.announce(self._api, version))

    def health(self) -> dict[str, Any]:
        """What the proxy says of itself and its engines."""
        return run(self._http, self._api.call("GET", "/health", again=False))

    def rollout(self, rollout: Mapping[str, Any]) -> dict[str, Any]:
        """Runs an agent on a task, and waits for what came of it (docs/rollouts.md).

        A connection that breaks, or a server that restarts, is asked again for the same rollout; whoever is
        interrupted meanwhile calls it off.

        :param rollout: the body of ``POST /rollouts``; with a ``rollout_id`` of its own it is joined where it runs
        :returns: ``rows``, ``reward`` and more; an agent that fails is no failure of its rollout
        """
        return run(self._http, self._rollouts.run(calls.with_id(rollout)))

    def session(self, session_id: str) -> Session:
        """One that is there already; nothing is asked."""
        return Session(self._http, SessionCalls(self._api, session_id, None))

    def sessions(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """All that match the filters of docs/http-api.md, page by page; ``metadata`` is a mapping."""
        cursor: str | None = None
        while True:
            page, cursor = run(self._http, calls.sessions(self._api, {**filters, "cursor": cursor}))
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


class AsyncClient(_Proxy):
    """As :class:`Client`, in an event loop; a task that is cancelled in :meth:`rollout` ends the agent."""

    def __init__(
        self, url: str | None = None, admin_key: str | None = None, *, http: httpx.AsyncClient | None = None
    ) -> None:
        super().__init__(url, admin_key)
        self._own = http is None
        self._http = http or httpx.AsyncClient(**_options())

    async def create(
        self,
        session_id: str | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        ttl_s: float | None = None,
        record: Sequence[str] | None = None,
        limits: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> AsyncSession:
        """Creates a session: one rollout. One that is there already is found, and not changed.

        :param session_id: default: the proxy makes one
        :param fields: others of docs/http-api.md, "Creating and listing", such as ``policy``
        """
        made = await run_async(
            self._http,
            calls.create(
                self._api,
                session_id,
                {
                    **fields,
                    "metadata": metadata,
                    "sampling_params": sampling_params,
                    "ttl_s": ttl_s,
                    "record": record,
                    "limits": limits,
                },
            ),
        )
        return AsyncSession(self._http, made)

    async def groups(self, by: str, **filters: Any) -> list[dict[str, Any]]:
        """Sessions by a value of their metadata, with counts and statistics of rewards."""
        return await run_async(self._http, calls.groups(self._api, by, filters))

    async def forest(self, **filters: Any) -> TokenForest:
        """The rows of all sessions that match, with each token once; filters are those of :meth:`sessions`."""
        return await run_async(self._http, calls.forest(self._api, filters))

    async def consumer(
        self,
        name: str,
        *,
        of_run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        group_by: str | None = None,
        group_size: int | None = None,
        rewarded: bool = False,
        since: float | None = None,
        hold_s: float | None = None,
    ) -> AsyncConsumer:
        """Creates a consumer, or finds the one of this name and these settings (docs/consumers.md).

        :param of_run: the run whose sessions it gets; with the key of a run, that one
        :param metadata: it gets only sessions that have each of these values
        :param group_by: a metadata key: sessions with one value come together, ``group_size`` at a time
        :param rewarded: it gets sessions when they have a reward
        :param since: it gets only sessions that ended then or later
        :param hold_s: how long after their end sessions are not swept, unless acknowledged
        """
        made = ConsumerCalls(self._api, name, of_run)
        settings = {
            "metadata": metadata,
            "group_by": group_by,
            "group_size": group_size,
            "rewarded": rewarded,
            "since": since,
            "hold_s": hold_s,
        }
        await run_async(self._http, made.create(settings))
        return AsyncConsumer(self._http, made)

    async def pause(self, drain_timeout_s: float = 60) -> bool:
        """Holds calls back, as while weights are replaced.

        :returns: whether no call runs any more; the pause holds in both cases
        """
        return await run_async(self._http, calls.pause(self._api, drain_timeout_s))

    async def resume(self) -> None:
        """Serves calls again."""
        await run_async(self._http, calls.resume(self._api))

    async def weight_version(self) -> int | str | None:
        """What was announced last."""
        return await run_async(self._http, calls.weight_version(self._api))

    async def announce_weights(self, version: int | str | None) -> None:
        """Says which weights the engines have now, for the turns of those that do not tell."""
        await run_async(self._http, calls.announce(self._api, version))

    async def health(self) -> dict[str, Any]:
        """What the proxy says of itself and its engines."""
        return await run_async(self._http, self._api.call("GET", "/health", again=False))

    async def rollout(self, rollout: Mapping[str, Any]) -> dict[str, Any]:
        """Runs an agent on a task, and waits for what came of it (docs/rollouts.md).

        A connection that breaks, or a server that restarts, is asked again for the same rollout; whoever is
        interrupted meanwhile calls it off.

        :param rollout: the body of ``POST /rollouts``; with a ``rollout_id`` of its own it is joined where it runs
        :returns: ``rows``, ``reward`` and more; an agent that fails is no failure of its rollout
        """
        return await run_async(self._http, self._rollouts.run(calls.with_id(rollout)))

    def session(self, session_id: str) -> AsyncSession:
        """One that is there already; nothing is asked."""
        return AsyncSession(self._http, SessionCalls(self._api, session_id, None))

    async def sessions(self, **filters: Any) -> AsyncIterator[dict[str, Any]]:
        """All that match the filters of docs/http-api.md, page by page; ``metadata`` is a mapping."""
        cursor: str | None = None
        while True:
            page, cursor = await run_async(
                self._http, calls.sessions(self._api, {**filters, "cursor": cursor})
            )
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
