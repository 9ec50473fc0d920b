"""The client, against a real proxy: responses, rejections, and a proxy that is unreachable."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from helpers.forwarder import Forwarder
from helpers.proxy import Proxy, start_proxy
from llm_proxy import AsyncClient, Client, ProxyApiError, Row, api
from llm_proxy.records import RowFields
from llm_proxy.rows import parse_row

KEY = "admin-key-of-a-test"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy with keys, on the embedded engine."""
    secret = "0123456789abcdef0123456789abcdef"
    flags = ("--admin-key", KEY, "--agent-key-secret", secret)
    with start_proxy(tmp_path_factory.mktemp("client"), *flags, mode="local") as started:
        yield started


def converse(base_url: str, key: str | None, turns: int = 2) -> None:
    """Simulates an agent that sends `turns` requests."""
    messages: list[dict[str, str]] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn}."})
        body = {"model": "embedded", "messages": messages, "max_tokens": 8}
        headers = {"Authorization": f"Bearer {key}"}
        response = httpx.post(f"{base_url}/chat/completions", json=body, headers=headers, timeout=30)
        response.raise_for_status()
        messages.append(response.json()["choices"][0]["message"])


def test_a_row_has_the_engine_requests_of_a_turn_that_continued_after_a_cut() -> None:
    request = {
        "start": 0,
        "end": 2,
        "engine": "e",
        "weight_version": None,
        "request_id": "r",
        "end_reason": "abort",
    }
    turn = {
        "turn_id": "t",
        "index": 0,
        "agent_role": "main",
        "start": 0,
        "end": 2,
        "trained": True,
        "labels": [],
    }
    turn |= dict.fromkeys(("policy", "reward", "finish_reason", "weight_version_start", "weight_version_end"))
    lists: dict[str, Any] = {
        name: [] for name in ("prompt_ids", "response_ids", "response_mask", "response_logprobs")
    }
    others = {spec.name: None for spec in dataclasses.fields(RowFields)}
    continued = {**turn, "engine_requests": [request]}
    row = parse_row("s", {**others, **lists, "turns": [continued, turn]})
    assert [dataclasses.asdict(each) for each in row.turns[0].engine_requests] == [request]
    assert row.turns[1].engine_requests == []


def test_a_rollout_from_its_session_to_its_rows(proxy: Proxy) -> None:
    with Client(proxy.url, KEY) as client:
        with client.create("task/7 ä", metadata={"task": "7", "step": 3}) as session:
            assert session.id == "task/7 ä"
            converse(session.base_url, session.agent_key)
            session.reward(1, components={"style": 0.5}, turns={1: 0.25}, agent_roles={"side": 0})
        info = session.info()
        assert (info["status"], info["reward"], info["turn_count"]) == ("completed", 1.0, 2)
        assert info["reward_lines"] == {"side": 0}
        (row,) = session.rows(details=["advantages"])
        assert [row.agent_role, *(turn.agent_role for turn in row.turns)] == ["main"] * 3
        assert (row.session_id, row.finished, row.exact, row.reward) == (session.id, True, True, 1.0)
        assert [turn.reward for turn in row.turns] == [None, 0.25]
        marked = session.mark(labels=["cheat"], turns={1: {"labels": ["odd"], "note": "here"}})
        assert (marked["labels"], marked["marked_turns"]["1"]["note"]) == (["cheat"], "here")
        assert session.mark(note="seen", turns={1: {"note": ""}})["note"] == "seen"
        assert [found["session_id"] for found in client.sessions(label="odd")] == [session.id]
        assert session.mark(note="")["note"] is None
        (labelled,) = session.rows()
        assert labelled.fields["labels"] == ["cheat"]
        assert [turn.fields["labels"] for turn in labelled.turns] == [[], ["odd"]]
        assert sum(row.response_mask) == sum(turn.end - turn.start for turn in row.turns)
        assert row.fields["reward_components"] == {"style": 0.5}
        assert row.fields["advantages"] is None
        assert "prompt_ids" not in row.fields
        (cut,) = session.rows(prompt_length=2, response_length=3)
        assert (cut.prompt_ids, cut.response_ids) == (row.prompt_ids[-2:], row.response_ids[:3])
        assert cut.truncated
        assert session.wait(0)["status"] == "completed"
        (fine_tuned,) = session.export("sft")
        assert fine_tuned["input_ids"] == [*row.prompt_ids, *row.response_ids]
        (trace,) = session.export("training_trace", select="last")
        assert [turn["completion_token_ids"] for turn in trace["turns"]] == [
            row.response_ids[turn.start : turn.end] for turn in row.turns
        ]
        assert session.delete()
        assert not session.delete()
        with pytest.raises(ProxyApiError, match="Session not found") as rejection:
            session.rows()
        assert (rejection.value.status, rejection.value.code) == (404, "session_not_found")


def test_a_session_has_a_key_on_a_proxy_without_keys(tmp_path: Path) -> None:
    with start_proxy(tmp_path, mode="local", token_mode=False) as started, Client(started.url) as client:
        session = client.create("task/8 ä!")
        assert session.agent_key
        converse(f"{started.url}/v1", session.agent_key, 1)
        assert session.info()["turn_count"] == 1


def test_trainer_data_is_stored_by_turn(proxy: Proxy) -> None:
    with Client(proxy.url, KEY) as client:
        with client.create() as session:
            converse(session.base_url, session.agent_key)
        (row,) = session.rows()
        advantages = np.arange(len(row.response_ids)) / 3
        assert session.add(row.of_turns(advantages=list(advantages))) == 2
        (stored,) = session.rows(details="advantages")
        expected = [
            number if bit else None for number, bit in zip(advantages, row.response_mask, strict=True)
        ]
        assert stored.fields["advantages"] == expected
        with pytest.raises(ValueError, match="advantages has 1 numbers"):
            row.of_turns(advantages=[1.0])


def test_rows_can_be_converted_to_arrays(proxy: Proxy) -> None:
    with Client(proxy.url, KEY) as client:
        with client.create() as session:
            converse(session.base_url, session.agent_key, 1)
        (row,) = session.rows()
    arrays = row.arrays()
    assert {name: str(array.dtype) for name, array in arrays.items()} == {
        "prompt_ids": "int64",
        "response_ids": "int64",
        "response_mask": "int64",
        "response_logprobs": "float64",
    }
    assert arrays["response_ids"].tolist() == row.response_ids
    assert arrays["response_logprobs"].tolist() == row.response_logprobs


def test_an_exception_in_a_session_aborts_it(proxy: Proxy) -> None:
    with Client(proxy.url, KEY) as client:
        with pytest.raises(ZeroDivisionError), client.create() as session:
            _ = 1 / 0
        assert session.wait()["status"] == "aborted"
        assert client.session(session.id).reset()["status"] == "active"
        with pytest.raises(TimeoutError, match=r"has not ended within 0\.05 s"):
            session.wait(0.05)
        session.abort()


def test_groups_and_lists_take_the_filters_of_the_api(proxy: Proxy) -> None:
    with Client(proxy.url, KEY) as client:
        for reward in (0, 1, 1):
            with client.create(metadata={"task": 'say "7"', "epoch": 7}) as session:
                session.reward(reward)
        assert client.create(metadata={"task": 7}).info()["metadata"]["task"] == 7
        (group,) = (one for one in client.groups("task") if one["value"] == 'say "7"')
        assert (group["sessions"], group["rewards"]["mean"]) == (3, pytest.approx(2 / 3))
        found = list(client.sessions(metadata={"task": 'say "7"', "epoch": 7}, limit=2, reward_min=0.5))
        assert len(found) == 2
        assert len(list(client.sessions(metadata={"task": 'say "7"'}, limit=2))) == 3, "page by page"
        assert not list(client.sessions(metadata={"epoch": "7"})), "text is text"


def test_weights_are_replaced_between_pause_and_resume(proxy: Proxy) -> None:
    with Client(proxy.url, KEY) as client:
        assert client.pause(5)
        client.announce_weights(4)
        client.resume()
        assert client.weight_version() == 4
        assert client.health()["paused"] is False


def test_a_wait_ends_with_the_session(proxy: Proxy) -> None:
    with Client(proxy.url, KEY) as client:
        session = client.create()
        timer = threading.Timer(0.2, session.complete)
        timer.start()
        assert session.wait(30)["status"] == "completed"
        timer.join()


def test_a_wrong_key_is_reported_and_not_retried(proxy: Proxy) -> None:
    with Client(proxy.url, "not-the-key-of-it") as client, pytest.raises(ProxyApiError) as rejection:
        client.create("s")
    assert (rejection.value.status, rejection.value.code) == (401, "unauthorized")


def test_messages_omit_the_credentials_of_the_url(proxy: Proxy) -> None:
    url = proxy.url.replace("//", "//user:hun@ter2@")
    with Client(url, KEY) as client, pytest.raises(ProxyApiError) as rejection:
        client.session("missing").reset()
    assert str(rejection.value).startswith(f"{proxy.url}/sessions/missing")


def test_a_proxy_url_is_required(monkeypatch: pytest.MonkeyPatch, proxy: Proxy) -> None:
    monkeypatch.delenv("PROXY_SERVER_URL", raising=False)
    with pytest.raises(ValueError, match="PROXY_SERVER_URL"):
        Client()
    with pytest.raises(ValueError, match="http:// or https://"):
        Client("proxy:8080")
    with pytest.raises(ValueError, match=r"unlike 'htp://\*\*\*@proxy'$"):
        Client("htp://user:hunter/2@proxy")
    monkeypatch.setenv("PROXY_SERVER_URL", f"{proxy.url}/v1")
    monkeypatch.setenv("LLM_PROXY_ADMIN_KEY", KEY)
    with Client() as client:
        assert client.url == proxy.url
        client.create("by-environment").delete()


async def test_an_unavailable_proxy_is_retried(proxy: Proxy) -> None:
    async with Forwarder(proxy.url) as forwarder, AsyncClient(forwarder.url, KEY) as client:
        session = await client.create("away")
        running = asyncio.create_task(session.wait(20))
        await asyncio.sleep(0.2)
        forwarder.cut()
        await session.reward(0.5)
        await session.complete()
        assert (await running)["status"] == "completed"
        assert [one["session_id"] async for one in client.sessions(q="away")] == ["away"]


async def test_an_unreachable_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_RETRY_LIMIT_S", 0.5)
    async with AsyncClient("http://127.0.0.1:9") as client:
        with pytest.raises(ProxyApiError, match=r"no proxy responds at http://127\.0\.0\.1:9") as rejection:
            await client.session("s").reward(1)
    assert (rejection.value.status, rejection.value.code) == (0, "unreachable")


async def test_an_event_loop_runs_many_sessions(proxy: Proxy) -> None:
    async with AsyncClient(proxy.url, KEY) as client:

        async def rollout(number: int) -> list[Row]:
            async with await client.create(metadata={"task": "many"}) as session:
                await asyncio.to_thread(converse, session.base_url, session.agent_key, 1)
                await session.reward(number)
            return await session.rows()

        rows = await asyncio.gather(*(rollout(number) for number in range(8)))
        assert [row.reward for (row,) in rows] == list(range(8))


async def test_a_teacher_scores_nothing_in_a_session_without_turns(proxy: Proxy) -> None:
    async with AsyncClient(proxy.url, KEY) as client:
        session = await client.create()
        scored = await session.score(teacher="wise")
        assert (scored["rows"], scored["left_out"]) == (0, {"inexact": 0, "images": 0})
        await session.delete()
