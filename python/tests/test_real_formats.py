"""Exports of sessions, read by the code of their trainers. Skipped where TRL or OpenEnv is not installed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.proxy import REPOSITORY, start_proxy
from llm_proxy import Client

pytest.importorskip("trl", reason="TRL is not installed here")
pytest.importorskip("openenv", reason="OpenEnv is not installed here")
pytestmark = pytest.mark.timeout(240)

TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with start_proxy(tmp_path_factory.mktemp("formats"), mode="local") as proxy, Client(proxy.url) as client:
        yield client


def converse(client: Client, session_id: str, task: str, rounds: int = 3, **fields: Any) -> None:
    """Runs a conversation in which each request extends the previous one."""
    import httpx

    messages: list[Any] = [{"role": "user", "content": task}]
    for number in range(rounds):
        body = {"model": "any", "messages": messages, "max_tokens": 12, "tools": TOOLS, **fields}
        response = httpx.post(f"{client.url}/{session_id}/v1/chat/completions", json=body, timeout=60)
        messages += [response.raise_for_status().json()["choices"][0]["message"]]
        messages += [{"role": "user", "content": f"And {number}?"}]


def documented(name: str) -> dict[str, Any]:
    """Returns the definitions of a block of docs/load-rows.md."""
    page = (REPOSITORY / "docs" / "load-rows.md").read_text()
    code = re.search(rf"^```python {name}\n(.*?)^```$", page, re.S | re.M)
    assert code is not None, name
    scope: dict[str, Any] = {}
    exec(code[1], scope)
    return scope


def test_trl_makes_the_rows_of_the_proxy_from_a_training_trace(client: Client) -> None:
    from trl.experimental.async_grpo.async_rollout_worker import _chain_to_sequences
    from trl.experimental.async_grpo.openenv_harness import _messages_from_trace, _turns_from_training_trace

    with client.create("traced"):
        converse(client, "traced", "Tell me about the sea.")
        # A second conversation of the same session, which starts another row.
        converse(client, "traced", "Now about the sky.", rounds=1)
    trace = documented("openenv")["training_trace"](client.url, "traced")
    rows = client.session("traced").rows()
    sequences, _ = _chain_to_sequences(_turns_from_training_trace(trace), "r", 0)
    assert [sequence.input_ids for sequence in sequences] == [
        list(row.prompt_ids) + list(row.response_ids) for row in rows
    ]
    for sequence, row in zip(sequences, rows, strict=True):
        before = [0] * len(row.prompt_ids)
        assert sequence.completion_mask == before + list(row.response_mask)
        assert sequence.old_log_probs == before + list(row.response_logprobs)
    assert len(sequences) == 2
    *_, last = _messages_from_trace(trace.to_trace_entries())
    assert last["role"] == "assistant"
    assert last["content"]
