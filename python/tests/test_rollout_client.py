"""Requests of agent loops to rollout servers, and their recovery when a server or a connection fails."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web

from helpers.forwarder import Forwarder
from helpers.harbor import Agent, HarborServer, completed
from helpers.loops import SAMPLING, make_loop, sample
from helpers.proxy import Proxy, start_proxy
from helpers.rollout_servers import RolloutServers
from helpers.waiting import eventually
from helpers.web_server import serve
from llm_proxy import AsyncClient, ProxyApiError, api, rollouts

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

DONE = {"status": "done", "rows": [], "error": None}


async def done(request: web.Request) -> web.StreamResponse:
    return web.json_response(DONE)


@asynccontextmanager
async def serve_handlers(*handlers: Handler) -> AsyncIterator[tuple[str, list[Any]]]:
    """Starts a server with one handler per request. Yields its URL, and the bodies that it received."""
    received: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        received.append(await request.json())
        return await handlers[len(received) - 1](request)

    app = web.Application()
    app.router.add_post("/rollouts", answer)
    runner, url = await serve(app)
    try:
        yield url, received
    finally:
        await runner.cleanup()


def reject_with(http_status: int, /, **body: Any) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=http_status)

    return answer


def fail_with(code: str) -> Handler:
    return reject_with(200, status="failed", rows=[], error={"code": code, "detail": "it was so"})


async def cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"   ")
    assert request.transport is not None
    request.transport.abort()
    return response


async def silent(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.Event().wait()
    return response


async def slow(request: web.Request) -> web.StreamResponse:
    """Sends keep-alives for longer than the client tolerates silence."""
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(8):
        await response.write(b" ")
        await asyncio.sleep(0.1)
    await response.write(b'{"status": "done", "rows": []}')
    return response


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "_RETRY_BASE_S", 0.001)
    monkeypatch.setattr(rollouts, "_MAX_DELAY_S", 0.1)
    monkeypatch.setattr(rollouts, "_RETRY_LIMIT_S", 1.0)
    monkeypatch.setattr(rollouts, "_ROLLOUT_TIMEOUT", httpx.Timeout(0.4, connect=10))


async def run_rollout(*urls: str) -> dict[str, Any]:
    async with AsyncClient(",".join(urls)) as client:
        return await client.rollout({"rollout_id": "a/b", "sample": {}})


@pytest.mark.usefixtures("short_timeouts")
async def test_an_unavailable_server_is_retried_with_the_same_rollout() -> None:
    failures = (
        cut,
        silent,
        fail_with("shutting_down"),
        reject_with(503, detail="later", code="shutting_down"),
        cut,
    )
    async with serve_handlers(*failures, done) as (url, received):
        assert await run_rollout(url) == DONE
    assert received == [{"rollout_id": "a/b", "sample": {}}] * 6


@pytest.mark.usefixtures("short_timeouts")
async def test_an_agent_may_work_for_as_long_as_its_server_sends_keep_alives() -> None:
    async with serve_handlers(slow) as (url, received):
        assert (await run_rollout(url))["status"] == "done"
    assert len(received) == 1


@pytest.mark.usefixtures("short_timeouts")
async def test_the_client_waits_longer_for_a_server_that_responded_before() -> None:
    async with (
        serve_handlers(done, *([reject_with(503)] * 20), done) as (url, received),
        AsyncClient(url) as client,
    ):
        for _ in range(2):
            assert await client.rollout({"rollout_id": "a", "sample": {}}) == DONE
    assert len(received) == 22, "longer than for a server that never responded"


async def cut_late(request: web.Request) -> web.StreamResponse:
    """Sends keep-alives for longer than a server that never responded is retried, and closes the connection."""
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(15):
        await response.write(b" ")
        await asyncio.sleep(0.1)
    assert request.transport is not None
    request.transport.abort()
    return response


@pytest.mark.usefixtures("short_timeouts")
async def test_a_rollout_is_retried_if_its_connection_breaks_after_the_limit_of_retries() -> None:
    async with serve_handlers(cut_late, done) as (url, received):
        assert await run_rollout(url) == DONE
    assert len(received) == 2


@pytest.mark.usefixtures("short_timeouts")
async def test_a_rollout_is_retried_at_its_server_of_several_if_its_connection_breaks_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollouts.random, "sample", lambda apis, _: list(apis))
    async with serve_handlers(cut_late, done) as (url, received), serve_handlers() as (other, _):
        assert await run_rollout(url, other) == DONE
    assert len(received) == 2


@pytest.mark.usefixtures("short_timeouts")
async def test_the_client_waits_longer_for_a_server_that_accepted_the_rollout() -> None:
    async with serve_handlers(cut, *([reject_with(503)] * 20), done) as (url, received):
        assert await run_rollout(url) == DONE
    assert len(received) == 22, "longer than for a server that never responded"


async def test_a_long_poll_that_fails_late_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_RETRY_BASE_S", 0.001)
    monkeypatch.setattr(api, "_RETRY_LIMIT_S", 0.2)
    polls = 0

    async def poll(request: web.Request) -> web.StreamResponse:
        nonlocal polls
        polls += 1
        if polls > 1:
            return web.json_response({"timed_out": False, "status": "completed"})
        await asyncio.sleep(0.4)
        return web.json_response({}, status=503)

    app = web.Application()
    app.router.add_get("/sessions/a/wait", poll)
    runner, url = await serve(app)
    try:
        async with AsyncClient(url) as client:
            assert await client.session("a").wait() == {"status": "completed"}
    finally:
        await runner.cleanup()


@pytest.mark.usefixtures("short_timeouts")
async def test_an_unreachable_server_is_named() -> None:
    with pytest.raises(ProxyApiError, match="no rollout server responds at http") as rejection:
        await run_rollout("http://127.0.0.1:9")
    assert (rejection.value.status, rejection.value.code) == (0, "unreachable")


@pytest.mark.parametrize(
    "failure",
    [
        reject_with(503, detail="the server does not respond", code="rollout_server_away"),
        reject_with(502),
        fail_with("shutting_down"),
    ],
)
@pytest.mark.usefixtures("short_timeouts")
async def test_a_rollout_runs_on_another_server_if_one_stays_unavailable(
    failure: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts.random, "sample", lambda apis, _: list(apis))
    async with (
        serve_handlers(*([failure] * 99)) as (away, requests),
        serve_handlers(done) as (other, received),
    ):
        assert await run_rollout(away, other) == DONE
        assert len(requests) > 1, "it is retried first"
    assert received == [{"rollout_id": "a/b", "sample": {}}]


@pytest.mark.usefixtures("short_timeouts")
async def test_a_rollout_that_a_server_rejects_does_not_run_on_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollouts.random, "sample", lambda apis, _: list(apis))
    async with (
        serve_handlers(reject_with(400, detail="no", code="invalid_request")) as (first, _),
        serve_handlers(done) as (other, received),
    ):
        with pytest.raises(ProxyApiError, match="no"):
            await run_rollout(first, other)
    assert received == []


@pytest.mark.parametrize(
    ("handler", "code", "message"),
    [
        (fail_with("proxy_failed"), "proxy_failed", "it was so"),
        (fail_with("rollout_cancelled"), "rollout_cancelled", "it was so"),
        (
            reject_with(400, detail="/sample: must be object", code="invalid_request"),
            "invalid_request",
            "must be",
        ),
        (
            reject_with(404, detail="no such route", code="route_not_found"),
            "route_not_found",
            "--rollout-server",
        ),
        (reject_with(200), "unknown", "did not respond like"),
        (reject_with(502), "unknown", "did not respond like"),
    ],
)
@pytest.mark.usefixtures("short_timeouts")
async def test_a_failure_is_reported_in_the_servers_words_and_not_retried(
    handler: Handler, code: str, message: str
) -> None:
    async with serve_handlers(*([handler] * 99)) as (url, received):
        with pytest.raises(ProxyApiError, match=message) as rejection:
            await run_rollout(url)
        assert rejection.value.code == code
        assert (len(received) > 1) == (rejection.value.status == 502)


async def test_a_rollout_whose_connection_breaks_is_joined_where_it_still_runs(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    at_work, resume = asyncio.Event(), asyncio.Event()

    async def work(agent: Agent) -> dict[str, Any]:
        at_work.set()
        await resume.wait()
        await agent.converse(2)
        return completed(reward=1.0)

    async with HarborServer(work) as harbor, Forwarder(relay_proxy.rollouts_url) as forwarder:
        loop = make_loop(RolloutServers(), dataclasses.replace(relay_proxy, rollouts_url=forwarder.url))
        running = asyncio.create_task(loop.run(dict(SAMPLING), **sample(tmp_path / "cut")))
        await at_work.wait()
        forwarder.cut()
        resume.set()
        output: Any = await running
    assert (sum(output.response_mask), len(harbor.agents)) == (12, 1)


async def test_a_cancelled_rollout_ends_its_agent_and_is_removed(
    relay_proxy: Proxy, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    sessions: list[str] = []

    async def forever(agent: Agent) -> dict[str, Any]:
        sessions.append(agent.base_url.removesuffix("/v1").rsplit("/", 1)[1])
        await asyncio.Event().wait()
        return completed()

    row = sample(tmp_path / "off")
    row["instance_id"] = "off/one two"
    async with HarborServer(forever):
        loop = make_loop(RolloutServers(), relay_proxy)
        task = asyncio.create_task(loop.run(dict(SAMPLING), **row))
        await eventually(lambda: len(sessions) == 1, "the agent runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await relay_proxy.get(http, f"/sessions/{sessions[0]}"))["status"] == "aborted"
    async with http.get(f"{relay_proxy.rollouts_url}/rollouts") as response:
        rollouts = (await response.json())["rollouts"]
    assert not [one for one in rollouts if one["rollout_id"].startswith("off/one two")]


async def test_a_caller_that_waits_for_a_rollout_receives_its_cancellation_by_another(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    started: list[str] = []

    async def forever(agent: Agent) -> dict[str, Any]:
        started.append(agent.base_url)
        await asyncio.Event().wait()
        return completed()

    sample_request = {"rollout_id": "off/by another", "sample": sample(tmp_path / "other"), "max_retries": 0}
    async with HarborServer(forever), AsyncClient(relay_proxy.rollouts_url) as client:
        task = asyncio.create_task(client.rollout(sample_request))
        await eventually(lambda: len(started) == 1, "the agent runs")
        await client.cancel("off/by another")
        # A proxy of an earlier release has another message.
        with pytest.raises(ProxyApiError) as rejection:
            await task
        assert rejection.value.code == "rollout_cancelled"
        await client.call_off("off/by another")


async def test_a_proxy_runs_rollouts_by_its_rollout_server(relay_proxy: Proxy, tmp_path: Path) -> None:
    async def converse(agent: Agent) -> dict[str, Any]:
        await agent.converse(2)
        return completed(reward=1.0)

    flags = ("--rollout-server", relay_proxy.rollouts_url)
    async with HarborServer(converse):
        with start_proxy(tmp_path, *flags, mode="local") as proxy:
            both = dataclasses.replace(relay_proxy, rollouts_url=proxy.url)
            output: Any = await make_loop(RolloutServers(), both).run(
                dict(SAMPLING), **sample(tmp_path / "on")
            )
    assert (sum(output.response_mask), output.reward_score) == (12, 1.0)


async def test_options_of_a_rollout_have_precedence_over_those_of_its_server(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    seen: list[dict[str, Any]] = []

    async def look(agent: Agent) -> dict[str, Any]:
        seen.append(agent.metadata)
        return completed(reward=1.0)

    options: dict[str, Any] = {
        "model_name": "policy",
        "agent_name": "swe",
        "agent_import_path": "my_agents.swe:Swe",
        "agent_kwargs": {"steps": 3},
        "environment_overrides": {"LANG": "C", "OPENAI_API_KEY": "not this one"},
        "environment_kwargs": '{"namespace": "rl"}',
    }
    async with HarborServer(look):
        await make_loop(RolloutServers(), relay_proxy, **options).run(
            dict(SAMPLING), **sample(tmp_path / "one")
        )
        await make_loop(RolloutServers(), relay_proxy).run(dict(SAMPLING), **sample(tmp_path / "two"))
    first, second = (metadata["agent"] for metadata in seen)
    assert (first["name"], first["import_path"], first["kwargs"]) == (
        "swe",
        "my_agents.swe:Swe",
        {"steps": 3},
    )
    assert first["model_name"] == "policy"
    assert seen[0]["environment_kwargs"] == {"namespace": "rl"}
    overrides = seen[0]["environment_overrides"]
    assert (overrides["LANG"], overrides["OPENAI_MODEL"]) == ("C", "policy")
    assert overrides["OPENAI_API_KEY"] != "not this one"
    assert (second["name"], second["kwargs"]) == (None, {}), "the next rollout has the server's own"
