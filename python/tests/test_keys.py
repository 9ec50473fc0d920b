"""A proxy with keys: each side uses its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from helpers.harbor import HARBOR_URL, Agent, HarborServer, completed
from helpers.loops import SAMPLING, make_loop, sample
from helpers.proxy import Proxy, start_proxy, start_rollouts
from helpers.rollout_servers import RolloutServers
from llm_proxy_verl import ProxyApiError

ADMIN, WORKER, SECRET = "admin-key-of-the-tests", "worker-key-of-the-tests", "secret-of-the-tests-1234"


@pytest.fixture(scope="module")
def closed_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    folder, admin = tmp_path_factory.mktemp("closed"), ("--admin-key", ADMIN)
    with (
        start_proxy(folder, *admin, "--worker-key", WORKER, "--agent-key-secret", SECRET) as proxy,
        start_rollouts(folder, proxy, *admin, "--runner", "harbor", "--harbor-url", HARBOR_URL) as both,
    ):
        yield both


async def test_trainer_worker_and_agent_use_separate_keys(
    closed_proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []

    async def converse(agent: Agent) -> dict[str, Any]:
        keys.append(agent.metadata["environment_overrides"]["OPENAI_API_KEY"])
        await agent.converse(2)
        return completed(reward=1.0)

    file = tmp_path / "admin-key"
    file.write_text(f"{ADMIN}\n")
    monkeypatch.setenv("LLM_PROXY_ADMIN_KEY", f"@{file}")
    # During a key rotation the proxy rejects the old key, and the worker then uses the new one.
    monkeypatch.setenv("LLM_PROXY_WORKER_KEY", f"worker-key-of-last-year,{WORKER}")
    async with HarborServer(converse):
        loop = make_loop(RolloutServers(), closed_proxy)
        output: Any = await loop.run(dict(SAMPLING), **sample(tmp_path / "task"))
    assert (sum(output.response_mask), output.reward_score) == (12, 1.0)
    assert keys[0].startswith("lp-task-")


async def test_an_agents_key_opens_nothing_but_its_session(
    closed_proxy: Proxy, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async def curious(agent: Agent) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {agent.metadata['environment_overrides']['OPENAI_API_KEY']}"}
        session = agent.base_url.removesuffix("/v1").rsplit("/", 1)[1]
        url = f"{closed_proxy.url}/sessions/{session}/reward"
        async with http.post(url, json={"reward": 100}, headers=headers) as response:
            assert response.status == 403
        return completed(reward=0.0)

    options = {"admin_key": ADMIN, "worker_key": WORKER}
    async with HarborServer(curious):
        loop = make_loop(RolloutServers(), closed_proxy, **options)
        output: Any = await loop.run(dict(SAMPLING), **sample(tmp_path / "curious"))
    assert output.reward_score == 0.0


async def test_a_trainer_without_the_key_fails_at_once(closed_proxy: Proxy, tmp_path: Path) -> None:
    loop = make_loop(RolloutServers(), closed_proxy, worker=False)
    with pytest.raises(ProxyApiError) as rejection:
        await loop.run(dict(SAMPLING), **sample(tmp_path / "task"))
    assert (rejection.value.status, rejection.value.code) == (401, "unauthorized")
