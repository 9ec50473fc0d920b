"""The verl loop of AgentCore's toolkit 0.2, unchanged, with the proxy as its gateway, as in docs/gateway.md.

Skipped without the toolkit. A session class of the toolkit's own kind replaces AgentCore, with an agent of the test.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from helpers.loops import SAMPLING, tokenizer
from helpers.proxy import Proxy, start_proxy
from helpers.rollout_servers import RolloutServers
from llm_proxy import Client
from llm_proxy_verl import ConfigError

pytest.importorskip("agentcore_rl_toolkit", reason="the toolkit is not installed here")
pytestmark = [pytest.mark.real_verl, pytest.mark.timeout(240)]

PROMPT_LENGTH, RESPONSE_LENGTH = 128, 200
KNOBS = {"max_tokens_per_turn": 24, "max_turns_per_sid": 4, "reward_extra_info_defaults": {"solved": 0}}


class LocalSession:
    """A rollout session as `rollout_session_backend` names one: its agent uses the key and URL of `_config`."""

    def __init__(self, session_id: str, _state: Any, **config: Any) -> None:
        self.session_id = session_id

    async def __aenter__(self) -> LocalSession:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def setup(self, task: dict[str, Any]) -> None: ...

    async def run(self, task: dict[str, Any]) -> Any:
        from agentcore_rl_toolkit.rollout_session.wire import RolloutDumpResponse

        config, does = task["_config"], task["does"]
        async with aiohttp.ClientSession() as http:

            async def send_request(messages: list[Any], status: int = 200) -> Any:
                headers = {"authorization": f"Bearer {config['api_key']}"}
                body = {"model": config["model_id"], "messages": messages}
                url = f"{config['base_url']}/chat/completions"
                async with http.post(url, json=body, headers=headers) as response:
                    assert response.status == status, await response.text()
                    return (await response.json())["choices"][0]["message"] if status == 200 else None

            messages: list[Any] = [{"role": "user", "content": "Look around."}]
            for _ in range({"talks": 2, "branches": 2, "dies": 1, "goes on": 4, "idle": 0}[does]):
                messages += [await send_request(messages), {"role": "user", "content": "Go on."}]
            if does == "branches":
                await send_request([{"role": "user", "content": "You are a sub-agent."}])
            if does == "goes on":
                await send_request(messages, status=400)
        if does == "dies":
            raise RuntimeError("out of memory")
        result = {"reward": 0.5, "metrics": {"solved": 1}}
        return RolloutDumpResponse(task_output=result, reward=0.5, exception=None)


class Actor:
    """An actor of the toolkit's trainer that admits every caller."""

    def __getattr__(self, _: str) -> Any:
        async def passes(*_: object) -> None: ...

        return SimpleNamespace(remote=passes)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with start_proxy(tmp_path_factory.mktemp("agentcore")) as started:
        yield started


@pytest.fixture
def create_loop(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that creates the loop of a sample as verl does, from an entry of its list."""
    import hydra
    import ray
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap

    from llm_proxy_verl import agentcore

    monkeypatch.setenv("PROXY_SERVER_URL", proxy.url)
    monkeypatch.setattr(ray, "get_actor", lambda _: Actor())
    monkeypatch.setattr(agentcore, "_gateway", None)
    rollout = {
        "name": "vllm",
        "prompt_length": PROMPT_LENGTH,
        "response_length": RESPONSE_LENGTH,
        "max_model_len": 4096,
        "multi_turn": {},
    }
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {"rollout": rollout, "model": {"path": "some/model"}},
            "data": {},
            "trainer": {"use_v1": True},
        }
    )
    entry = {
        "name": "agentcore_agent",
        "_target_": "agentcore_rl_toolkit.backends.verl.agent_loop.AgentCoreAgentLoop",
        "rollout_session_backend": {"backend": f"{__name__}.LocalSession"},
        **KNOBS,
    }
    client = RolloutServers().client(config)

    def make() -> Any:
        return hydra.utils.instantiate(
            config=OmegaConf.create(entry),
            trainer_config=DictConfigWrap(config=config),
            server_manager=client,
            tokenizer=tokenizer(),
            processor=None,
            dataset_cls=None,
            data_config=DictConfigWrap(config.data),
        )

    return make


async def test_the_toolkits_loop_trains_on_what_the_proxy_recorded(create_loop: Any, proxy: Proxy) -> None:
    async def run(does: str) -> Any:
        return await create_loop().run(dict(SAMPLING), payload={"does": does}, global_steps=7)

    (talks,), branches, (dies,), _ = await asyncio.gather(*map(run, ("talks", "branches", "dies", "goes on")))
    for output, turns, reward in ((talks, 2, 0.5), (dies, 1, 0.0), (branches[-1], 3, 0.5)):
        check(proxy, output)
        assert (output.num_turns, output.reward_score) == (turns + 1, reward)
        assert output.extra_fields["reward_extra_info"]["agent_reward"] == reward
        assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (3, 3)
    assert [sum(output.response_mask) for output in (talks, dies, *branches)] == [12, 6, 6, 12]
    assert "out of memory" in dies.extra_fields["acr_error"]
    assert talks.extra_fields["trace_metadata"]["line"] == "main"
    with pytest.raises(RuntimeError, match="no model turns were captured"):
        await run("idle")


def check(proxy: Proxy, output: Any) -> None:
    """Checks that the row equals the proxy's, and was sampled as verl and the loop declared."""
    with Client(proxy.url) as client:
        session = client.session(output.extra_fields["acr_session_id"])
        rows, info = session.rows(), session.info()
        assert info["status"] == "completed"
        expected = {"max_tokens": KNOBS["max_tokens_per_turn"], "temperature": 1.0, "top_p": 1.0, "top_k": -1}
        assert info["sampling_params"] == expected
        found = [row for row in rows if row.prompt_ids == output.prompt_ids]
        assert [row.response_ids for row in found] == [output.response_ids]
        assert found[0].response_mask == output.response_mask
        assert found[0].response_logprobs == output.response_logprobs


async def test_a_row_is_truncated_to_verls_context_length(create_loop: Any, proxy: Proxy) -> None:
    gateway = create_loop()._gateway
    gateway.create_session("long", max_context_tokens=60)
    async with aiohttp.ClientSession() as http:
        messages: list[Any] = [{"role": "user", "content": "word " * 20}]
        for _ in range(4):
            _, response = await proxy.chat(http, "long", messages)
            messages += [response["choices"][0]["message"], {"role": "user", "content": "Go on."}]
    (record,) = await gateway.finish_session("long")
    with Client(proxy.url) as client:
        (row,) = client.session("long").rows()
    assert len(row.prompt_ids) + len(row.response_ids) > 60
    assert record.token_ids == [*row.prompt_ids, *row.response_ids][:60]
    assert record.loss_mask == row.response_mask[: 60 - len(row.prompt_ids)]
    gateway.create_session("too-long", max_context_tokens=4)
    async with aiohttp.ClientSession() as http:
        await proxy.chat(http, "too-long", messages[:1])
    assert await gateway.finish_session("too-long") == []


def test_verl_takes_it_by_the_name_of_its_module(tmp_path: Path) -> None:
    """Runs in a separate process, as verl's workers do."""
    program = (
        "from agentcore_rl_toolkit.backends.verl import agent_loop\n"
        "print(agent_loop.get_or_start_gateway.__module__)"
    )
    env = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "llm_proxy_verl.agentcore"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().split("\n")[-1] == "llm_proxy_verl.agentcore", done.stderr


async def test_a_proxy_with_keys_is_rejected_with_a_clear_error(
    create_loop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop passes the session's id to its agents as their key, and cannot pass another one."""
    keys = ("--admin-key", "an-admin-key-of-a-test", "--agent-key-secret", "s" * 32)
    with start_proxy(tmp_path, *keys, mode="local") as keyed:
        monkeypatch.setenv("PROXY_SERVER_URL", keyed.url)
        monkeypatch.setenv("LLM_PROXY_ADMIN_KEY", "an-admin-key-of-a-test")
        with pytest.raises(ConfigError, match="start the proxy without keys"):
            await create_loop().run(dict(SAMPLING), payload={"does": "talks"})
