"""The worker against the real proxy: the recorded tokens are those that the engine received and sampled."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from helpers.forwarder import Forwarder
from helpers.proxy import REPOSITORY, Proxy, start_proxy
from helpers.rollout_servers import END_OF_TURN, RolloutServers, Tokenizer, completion
from helpers.waiting import eventually
from llm_proxy_verl import InferenceWorkerClient, RolloutLimits, VerlEngine
from llm_proxy_verl.worker.client import TOKENIZER_TEXT

LIMITS = RolloutLimits("vllm", 4096, 4096, max_model_len=None, eos_token_ids=frozenset({END_OF_TURN}))
QUESTION = [{"role": "user", "content": "What is the sea?"}]


@contextlib.asynccontextmanager
async def running_worker(
    url: str,
    servers: RolloutServers,
    limits: RolloutLimits = LIMITS,
    tokenizer: Tokenizer | None = None,
    **options: Any,
) -> AsyncIterator[InferenceWorkerClient]:
    engine = VerlEngine(servers.client(), limits, tokenizer or Tokenizer())
    options = {"worker_id": f"test-{random.getrandbits(64):x}", "draw": lambda: 0.01, **options}
    worker = InferenceWorkerClient([url], engine, **options)
    worker.start()
    try:
        assert await worker.wait_connected(10), "the worker does not get a connection"
        yield worker
    finally:
        await worker.stop(grace_s=1)


class OtherTokenizer(Tokenizer):
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]


async def test_a_trainer_with_another_tokenizer_than_the_proxy_gets_no_requests(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    source = (REPOSITORY / "src/proxy/engines/port/expected-tokenizer.ts").read_text()
    assert json.loads('"' + source.split("TOKENIZER_TEXT =\n  '")[1].split("'\n")[0] + '"') == TOKENIZER_TEXT
    servers = RolloutServers()
    with start_proxy(tmp_path, "--queue-wait", "100ms") as proxy:
        async with running_worker(proxy.url, servers, tokenizer=OtherTokenizer()):
            [worker] = (await proxy.get(http, "/health"))["workers"]
            assert worker["tokenizer"] == "other"
            assert "is not that of --tokenizer" in worker["error"]
            status, _ = await proxy.chat(http, "other", QUESTION)
            assert status == 503
    assert servers.requests == []


async def test_the_engine_gets_the_recorded_prompt_and_what_it_samples_is_recorded(
    relay_proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    servers = RolloutServers()
    messages: list[Any] = list(QUESTION)
    async with running_worker(relay_proxy.url, servers):
        for turn in range(3):
            status, response = await relay_proxy.chat(http, "exact", messages)
            assert status == 200
            messages += [response["choices"][0]["message"], {"role": "user", "content": f"And then? {turn}"}]
    turns = await relay_proxy.turns(http, "exact")
    assert [turn["prompt_token_ids"] for turn in turns] == [
        request.prompt_ids for request in servers.requests
    ]
    assert [turn["completion_token_ids"] for turn in turns] == [
        request.output.token_ids for request in servers.requests
    ]
    assert [turn["completion_logprobs"] for turn in turns] == [
        request.output.log_probs for request in servers.requests
    ]
    assert all(turn["exact"] for turn in turns)
    for before, after in itertools.pairwise(turns):
        history = before["prompt_token_ids"] + before["completion_token_ids"]
        assert after["prompt_token_ids"][: len(history)] == history
    assert servers.sticky_ids == ["exact"] * 3


async def test_a_turn_has_the_steps_that_verl_reports_and_its_finish_reason(
    relay_proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    async def over_a_weight_update(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        output = completion(prompt_ids, count=16 if params["max_tokens"] == 16 else 5)
        output.token_ids[-1] = 300
        output.extra_fields = {"global_steps": 8, "min_global_steps": 7, "max_global_steps": 8}
        return output

    servers = RolloutServers(over_a_weight_update)
    async with running_worker(relay_proxy.url, servers):
        await relay_proxy.chat(http, "steps", QUESTION)
        await relay_proxy.chat(http, "steps", QUESTION, max_tokens=50)
    cut, ended = await relay_proxy.turns(http, "steps")
    assert (cut["weight_version_start"], cut["weight_version_end"]) == ("7", "8")
    assert (cut["finish_reason"], ended["finish_reason"]) == ("length", "stop")


@pytest.mark.parametrize(
    ("stop_reason", "last", "count", "recorded"),
    [
        # SGLang leaves a position of the context free, so that it ends before the limit.
        ("length", 300, 15, "length"),
        ("stop", 300, 16, "stop"),
        ("length", END_OF_TURN, 16, "stop"),
        ("completed", 300, 15, "stop"),
    ],
)
async def test_the_finish_reason_is_the_engines_if_it_reports_one(
    relay_proxy: Proxy, http: aiohttp.ClientSession, stop_reason: str, last: int, count: int, recorded: str
) -> None:
    async def ended(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        output = completion(prompt_ids, count=count)
        output.token_ids[-1], output.stop_reason = last, stop_reason
        return output

    async with running_worker(relay_proxy.url, RolloutServers(ended)):
        await relay_proxy.chat(http, f"{stop_reason}-{last}-{count}", QUESTION)
    (turn,) = await relay_proxy.turns(http, f"{stop_reason}-{last}-{count}")
    assert turn["finish_reason"] == recorded


async def test_sampling_parameters_reach_verl_under_its_names(
    relay_proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    servers = RolloutServers()
    params = {"temperature": 0.5, "top_p": 0.9, "stop": ["END"], "seed": 4, "user": "u", "logprobs": False}
    async with running_worker(relay_proxy.url, servers):
        assert (await relay_proxy.chat(http, "sampling", QUESTION, **params))[0] == 200
        status, rejection = await relay_proxy.chat(http, "sampling", QUESTION, logit_bias={"7": 1.0})
    assert servers.requests[0].sampling_params == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": -1,
        "repetition_penalty": 1.0,
        "stop": ["END"],
        "seed": 4,
        "max_tokens": 16,
        "logprobs": True,
    }
    assert (status, rejection["error"]["code"], rejection["error"]["param"]) == (
        400,
        "unsupported",
        "logit_bias",
    )


async def test_an_agent_that_disconnects_ends_the_wait_for_its_response(
    relay_proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    never = asyncio.Event()

    async def hang(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        await never.wait()

    servers = RolloutServers(hang)
    async with running_worker(relay_proxy.url, servers, max_concurrency=1) as worker:
        request = asyncio.create_task(relay_proxy.chat(http, "leaves", QUESTION))
        await eventually(lambda: servers.started == 1, "the engine has the request")
        request.cancel()
        await eventually(lambda: servers.cancelled == 1, "the wait for the engine ends")
        servers.script = RolloutServers().script
        assert (await relay_proxy.chat(http, "stays", QUESTION))[0] == 200, "its slot is free again"
        assert worker.worker_id in await relay_proxy.worker_ids(http)


async def test_a_lost_connection_fails_no_request_and_samples_nothing_twice(
    relay_proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    async def slowly(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        await asyncio.sleep(0.2 + random.random())
        return completion(prompt_ids)

    servers = RolloutServers(slowly)
    async with Forwarder(relay_proxy.url) as forwarder, running_worker(forwarder.url, servers):
        requests = [asyncio.create_task(relay_proxy.chat(http, f"cut-{i}", QUESTION)) for i in range(20)]
        for _ in range(6):
            await asyncio.sleep(0.2)
            forwarder.cut()
        responses = await asyncio.gather(*requests)
    assert [status for status, _ in responses] == [200] * 20
    assert servers.started == 20
    for i in range(20):
        (turn,) = await relay_proxy.turns(http, f"cut-{i}")
        assert turn["completion_token_ids"] == completion(turn["prompt_token_ids"]).token_ids


async def test_a_response_that_ends_while_disconnected_is_delivered_after_reconnecting(
    relay_proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    sampled = asyncio.Event()

    async def when_released(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        await sampled.wait()
        return completion(prompt_ids)

    servers = RolloutServers(when_released)
    async with Forwarder(relay_proxy.url) as forwarder, running_worker(forwarder.url, servers):
        request = asyncio.create_task(relay_proxy.chat(http, "while-cut", QUESTION))
        await eventually(lambda: servers.started == 1, "the engine has the request")
        forwarder.reject()
        sampled.set()
        await eventually(lambda: len(servers.requests) == 1, "the engine has responded")
        forwarder.accept()
        assert (await request)[0] == 200
    assert servers.started == 1


async def test_a_draining_worker_finishes_its_requests_and_accepts_no_new_ones(
    relay_proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    released = asyncio.Event()

    async def when_released(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        await released.wait()
        return completion(prompt_ids)

    old, new = RolloutServers(when_released), RolloutServers()
    async with running_worker(relay_proxy.url, old) as worker:
        running = asyncio.create_task(relay_proxy.chat(http, "drains", QUESTION))
        await eventually(lambda: old.started == 1, "the engine has the request")
        stopped = asyncio.create_task(worker.stop())
        async with running_worker(relay_proxy.url, new):
            assert (await relay_proxy.chat(http, "later", QUESTION))[0] == 200
            assert (old.started, len(new.requests)) == (1, 1)
            released.set()
            assert (await running)[0] == 200
            assert await stopped, "everything was delivered"
            await relay_proxy.wait_for_removal(http, worker.worker_id)


async def test_a_response_larger_than_the_window_arrives_complete(
    relay_proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    async def respond_at_length(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        return completion(prompt_ids, count=80_000)

    async with running_worker(relay_proxy.url, RolloutServers(respond_at_length)):
        assert (await relay_proxy.chat(http, "large", QUESTION, max_tokens=100_000))[0] == 200
    (turn,) = await relay_proxy.turns(http, "large")
    assert turn["completion_token_ids"] == completion(turn["prompt_token_ids"], count=80_000).token_ids


async def test_a_generation_that_verl_aborts_is_retried(
    relay_proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    async def aborted_once(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        output = completion(prompt_ids)
        if servers.started == 1:
            output.token_ids, output.log_probs, output.stop_reason = [], None, "aborted"
        return output

    servers = RolloutServers(aborted_once)
    async with running_worker(relay_proxy.url, servers):
        assert (await relay_proxy.chat(http, "aborted", QUESTION))[0] == 200
    (turn,) = await relay_proxy.turns(http, "aborted")
    assert (turn["exact"], servers.started) == (True, 2)


async def test_a_generation_that_its_engine_cancels_is_retried(
    relay_proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    async def cancelled_once(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        if servers.started == 1:
            response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            response.cancel()
            return await response
        return completion(prompt_ids)

    servers = RolloutServers(cancelled_once)
    async with running_worker(relay_proxy.url, servers):
        status, _ = await asyncio.wait_for(relay_proxy.chat(http, "cancelled", QUESTION), timeout=30)
    assert (status, servers.started) == (200, 2)
    (turn,) = await relay_proxy.turns(http, "cancelled")
    assert turn["exact"] is True


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ("raises", "engine_failed"),
        ("reports nothing", "engine_failed"),
        ("miscounts", "engine_failed"),
        ("breaks half-way", "engine_failed"),
    ],
)
async def test_an_engine_failure_is_an_error_for_its_agent_only(
    relay_proxy: Proxy, http: aiohttp.ClientSession, wrong: str, code: str
) -> None:
    async def fail(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        output = completion(prompt_ids)
        if wrong == "raises":
            raise RuntimeError("the actor died")
        if wrong == "reports nothing":
            output.token_ids, output.log_probs = [], []
        if wrong == "miscounts":
            output.log_probs = [-0.5]
        if wrong == "breaks half-way":
            output.stop_reason = "error"
        return output

    servers = RolloutServers(fail)
    async with running_worker(relay_proxy.url, servers):
        status, response = await relay_proxy.chat(http, "fails", QUESTION)
        assert (status, response["error"]["code"]) == (502, code)
        servers.script = RolloutServers().script
        assert (await relay_proxy.chat(http, "goes-on", QUESTION))[0] == 200


async def test_a_prompt_that_fills_the_context_is_rejected_with_a_message_that_agents_match(
    relay_proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    limits = RolloutLimits("vllm", 4, 4, max_model_len=8)
    async with running_worker(relay_proxy.url, RolloutServers(), limits):
        status, response = await relay_proxy.chat(http, "full", QUESTION)
    assert status == 400
    assert "maximum context length is 8 tokens" in response["error"]["message"]


async def test_turns_without_log_probabilities_are_recorded_as_not_exact(
    relay_proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    async def silent(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        return completion(prompt_ids).model_copy(update={"log_probs": None})

    async with running_worker(relay_proxy.url, RolloutServers(silent)):
        assert (await relay_proxy.chat(http, "silent", QUESTION))[0] == 200
    (turn,) = await relay_proxy.turns(http, "silent")
    assert turn["exact"] is False


async def test_a_completion_of_token_ids_has_the_text_of_the_tokenizer(
    relay_proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    servers = RolloutServers()
    body = {"model": "any", "prompt": [301, 302], "max_tokens": 16}
    url = f"{relay_proxy.url}/text/v1/completions"
    async with running_worker(relay_proxy.url, servers), http.post(url, json=body) as response:
        completion = await response.json()
    assert servers.requests[0].prompt_ids == [301, 302]
    assert completion["choices"][0]["text"] == Tokenizer().decode(servers.requests[0].output.token_ids)


async def test_an_agent_that_requests_log_probabilities_receives_those_of_the_sampled_tokens(
    relay_proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    servers = RolloutServers()
    async with running_worker(relay_proxy.url, servers):
        _, response = await relay_proxy.chat(http, "asks", QUESTION, logprobs=True)
    entries = response["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in entries] == servers.requests[0].output.log_probs
    assert [entry["token"] for entry in entries] == [
        str(token) for token in servers.requests[0].output.token_ids
    ]


@pytest.mark.parametrize("number", [0, 1])
async def test_a_completion_with_a_number_of_log_probabilities_has_those_of_the_sampled_tokens(
    relay_proxy: Proxy, http: aiohttp.ClientSession, number: int
) -> None:
    servers = RolloutServers()
    body = {"model": "any", "prompt": [301, 302], "max_tokens": 16, "logprobs": number}
    url = f"{relay_proxy.url}/numbers/v1/completions"
    async with running_worker(relay_proxy.url, servers), http.post(url, json=body) as response:
        completion = await response.json()
    logprobs = completion["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == servers.requests[0].output.log_probs
    assert logprobs["tokens"] == [str(token) for token in servers.requests[0].output.token_ids]


async def test_without_token_mode_an_error_names_the_option_that_enables_it(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    with start_proxy(tmp_path, token_mode=False) as proxy:
        async with running_worker(proxy.url, RolloutServers()):
            status, response = await proxy.chat(http, "chat-mode", QUESTION)
    assert (status, response["error"]["code"]) == (400, "unsupported")
    assert "--tokenizer" in response["error"]["message"]


async def test_a_worker_outlives_a_proxy_that_restarts(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    servers = RolloutServers()
    with start_proxy(tmp_path) as proxy:
        port = proxy.url.rsplit(":", 1)[1]
        worker = InferenceWorkerClient(
            [proxy.url], VerlEngine(servers.client(), LIMITS), worker_id="survivor", draw=lambda: 0.01
        )
        worker.start()
        assert await worker.wait_connected(10)
        assert (await proxy.chat(http, "before", QUESTION))[0] == 200
    with start_proxy(tmp_path, "--port", port) as proxy:
        async with aiohttp.ClientSession() as fresh:
            assert (await proxy.chat(fresh, "after", QUESTION))[0] == 200
        assert await worker.stop(grace_s=5)


@pytest.mark.parametrize("value", ["{levels}", "9" * 5000])
async def test_a_request_beyond_the_limits_of_pythons_json_is_served(
    relay_proxy: Proxy, http: aiohttp.ClientSession, value: str
) -> None:
    # The deepest body that the proxy admits: its limit is 1,000 levels, of which this text adds all but two.
    deep = value.format(levels='{"a":' * 998 + "1" + "}" * 998)
    body = {"model": "any", "messages": QUESTION, "extra_body": {"value": "VALUE"}}
    session_id = f"beyond-{len(value)}"
    async with running_worker(relay_proxy.url, RolloutServers()) as worker:
        async with http.post(
            f"{relay_proxy.url}/{session_id}/v1/chat/completions",
            data=json.dumps(body).replace('"VALUE"', deep),
            headers={"content-type": "application/json"},
        ) as response:
            assert response.status == 200, await response.text()
        assert (await relay_proxy.chat(http, session_id, QUESTION))[0] == 200
        assert await worker.wait_connected(0.1)


async def test_a_worker_reconnects_after_an_unexpected_exception(
    relay_proxy: Proxy, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    failures = ["of the engine"]

    class FailingEngine(VerlEngine):
        @property
        def weight_version(self) -> str | None:
            if failures:
                raise RuntimeError(failures.pop())
            return super().weight_version

    engine = FailingEngine(RolloutServers().client(), LIMITS, Tokenizer())
    worker = InferenceWorkerClient([relay_proxy.url], engine, worker_id="failing", draw=lambda: 0.01)
    worker.start()
    assert await worker.wait_connected(10)
    assert (await relay_proxy.chat(http, "after-an-exception", QUESTION))[0] == 200
    assert await worker.stop(grace_s=5)
    [logged] = [record.getMessage() for record in caplog.records if "ends" in record.getMessage()]
    assert "RuntimeError" in logged
    assert "of the engine" not in logged


async def test_a_response_that_takes_longer_than_the_relay_timeout_arrives(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    async def late(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        await asyncio.sleep(4)
        return completion(prompt_ids)

    with start_proxy(tmp_path, "--relay-timeout", "1500ms") as proxy:
        async with running_worker(proxy.url, RolloutServers(late)):
            status, response = await proxy.chat(http, "late", QUESTION)
    assert status == 200, response


async def test_a_status_request_of_the_proxy_is_answered_immediately(
    relay_proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    resume = f"{relay_proxy.url}/admin/resume"
    # The proxy requests the status before it dispatches again, and waits 12 s for a worker that does not respond.
    async with (
        running_worker(relay_proxy.url, RolloutServers()),
        asyncio.timeout(8),
        http.post(resume) as response,
    ):
        assert response.status == 200


async def test_a_silent_proxy_is_not_told_that_the_worker_leaves() -> None:
    async def greet(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        hello = await socket.receive_json()
        ack = {"type": "worker_hello_ack", "worker_id": hello["worker_id"], "status": "connected"}
        limits = {"heartbeat_ms": 50, "grace_ms": 1000, "window_bytes": 1000}
        await socket.send_json({**ack, **limits, "protocol": 2, "requests": []})
        async for _ in socket:
            pass
        codes.append(socket.close_code)
        return socket

    codes: list[int | None] = []
    app = web.Application()
    app.router.add_get("/ws/worker", greet)
    async with TestServer(app) as server, running_worker(str(server.make_url("")), RolloutServers()):
        await eventually(lambda: bool(codes), "the worker closes the connection")
    assert codes[0] == 1011
