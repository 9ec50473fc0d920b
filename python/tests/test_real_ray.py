"""With verl and Ray: agent loops in actors, verl's load balancer and client between them and a server actor."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from helpers.loops import SAMPLING, make_loop, sample
from helpers.proxy import Proxy, start_rollouts
from helpers.rollout_servers import RolloutServers, completion, trainer_config

pytestmark = [pytest.mark.real_verl, pytest.mark.timeout(240)]


#: An agent that uses only the standard library, and sends one request with the settings in its environment.
ONE_REQUEST = """
import json, os, urllib.request
body = {"model": os.environ.get("OPENAI_MODEL", "any"), "max_tokens": 16,
        "messages": [{"role": "user", "content": os.environ["TASK_PROMPT"]}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
                                 {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
with urllib.request.urlopen(request) as response:
    print(json.load(response)["choices"][0]["message"]["content"])
"""


class Server:
    """A rollout server of verl that computes nothing."""

    async def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any], **_fields: Any) -> Any:
        await asyncio.sleep(0.05)
        return completion(prompt_ids)


class Loops:
    """Runs loops as verl's agent loop worker does: with one client, and a loop per sample."""

    def __init__(self, load_balancer: Any, proxy: Proxy) -> None:
        from verl.workers.rollout.llm_server import LLMServerClient

        self._config = trainer_config()
        self._client = LLMServerClient(self._config, load_balancer_handle=load_balancer)
        self._proxy = proxy

    async def run(self, root: Path, count: int) -> list[tuple[int, float | None]]:
        outputs: list[Any] = await asyncio.gather(
            *(
                make_loop(RolloutServers(), self._proxy, config=self._config, client=self._client).run(
                    dict(SAMPLING), **sample(root / f"task-{number}")
                )
                for number in range(count)
            )
        )
        return [(sum(output.response_mask), output.reward_score) for output in outputs]


async def test_each_process_of_ray_has_one_worker_for_all_its_loops(
    relay_proxy: Proxy, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    import ray
    from verl.workers.rollout.router import GlobalRequestLoadBalancer

    here = Path(__file__).parent
    paths = f"{here}:{here.parent / 'src'}"
    ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": paths}})
    try:
        server = ray.remote(Server).remote()
        balancer = ray.remote(GlobalRequestLoadBalancer).remote(servers={"server": server})
        program = tmp_path / "agent.py"
        program.write_text(ONE_REQUEST)
        command = ("--command", f"{sys.executable} {program}", "--verifier", "true", "--sandbox", "none")
        with start_rollouts(tmp_path, relay_proxy, *command) as proxy:
            actors = [ray.remote(Loops).remote(balancer, proxy) for _ in range(2)]
            results = await asyncio.gather(*(actor.run.remote(tmp_path, 8) for actor in actors))
        assert results == [[(6, 1.0)] * 8] * 2
        assert len(await relay_proxy.worker_ids(http)) == 2
    finally:
        ray.shutdown()
