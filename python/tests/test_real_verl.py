"""With verl itself: the batches that its workers make of agent loops' outputs. Skipped where verl is not installed."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.harbor import Agent, HarborServer, completed
from helpers.loops import SAMPLING, sample, tokenizer
from helpers.proxy import REPOSITORY, Proxy, start_proxy, start_rollouts
from helpers.rollout_servers import RolloutServers, completion
from test_details import CHOSEN, LAYERS, experts

# verl is imported by the first test.
pytestmark = [pytest.mark.real_verl, pytest.mark.timeout(240)]

EXAMPLE = Path(__file__).parents[1] / "examples" / "remote_agent.yaml"
CLAUDE_CODE = EXAMPLE.with_name("claude_code.yaml")
PROMPT_LENGTH, RESPONSE_LENGTH = 128, 200


async def by_task(agent: Agent) -> dict[str, Any]:
    """`talks` has one row, `branches` two, `idle` none."""
    name = agent.metadata["task_path"].rsplit("/", 1)[1]
    if name == "branches":
        await agent.chat([{"role": "user", "content": "Sub-agent, look there."}])
    if name != "idle":
        await agent.converse(2, question=name)
    return completed(reward={"talks": 1.0, "branches": 2.0, "idle": 0.5}[name])


def create_worker(kind: Any, proxy: Proxy, **config: Any) -> Any:
    """Creates verl's agent loop worker without its actors, its model and its reward loop."""
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop import agent_loop

    rollout = {
        "name": "vllm",
        "prompt_length": PROMPT_LENGTH,
        "response_length": RESPONSE_LENGTH,
        "max_model_len": None,
        "full_determinism": False,
    }
    entry = OmegaConf.load(EXAMPLE)[0]
    entry.remote_agent.update({"proxy_urls": [proxy.url], "rollout_servers": [proxy.rollouts_url]})
    agent_loop._agent_loop_registry["remote_agent"] = entry
    worker = object.__new__(kind)
    worker.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}, **config})
    worker.rollout_config = worker.config.actor_rollout_ref.rollout
    worker.tokenizer, worker.processor, worker.hf_model_type = tokenizer(), None, None
    worker.llm_client, worker.dataset_cls, worker.tools = RolloutServers().client(worker.config), None, []
    worker.reward_loop_worker_handles, worker.distillation_enabled = None, False
    worker.mm_processor_kwargs = {}
    return worker


def trajectory() -> dict[str, Any]:
    return {"step": 3, "sample_index": 0, "rollout_n": 0, "validate": False}


async def test_verls_worker_makes_a_batch_of_rows_that_train_and_one_that_does_not(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    async with HarborServer(by_task):
        worker = create_worker(AgentLoopWorker, relay_proxy)
        outputs = await asyncio.gather(
            *(
                worker._run_agent_loop(
                    dict(SAMPLING),
                    trajectory(),
                    agent_name="remote_agent",
                    trace=False,
                    **sample(tmp_path / name),
                )
                for name in ("talks", "branches", "idle")
            )
        )
    data = worker._postprocess(outputs)
    assert data.batch["prompts"].shape == (3, PROMPT_LENGTH)
    assert data.batch["responses"].shape == (3, RESPONSE_LENGTH)
    assert data.batch["response_mask"].sum(dim=1).tolist() == [12, 12, 0]
    assert data.batch["rm_scores"].sum(dim=1).tolist() == [1.0, 2.0, 0.5]
    log_probs, mask = data.batch["rollout_log_probs"], data.batch["response_mask"]
    assert ((log_probs != 0) == (mask == 1)).all()
    assert data.non_tensor_batch["remote_agent/padding"].tolist() == [0, 0, 1]
    assert data.non_tensor_batch["remote_agent/left_out_turns"].tolist() == [0, 1, 0]


async def test_rows_with_routed_experts_make_a_batch_with_one_that_has_none(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    async def sampled(prompt_ids: list[int], _params: dict[str, Any]) -> Any:
        output = completion(prompt_ids)
        output.routed_experts = experts([*prompt_ids, *output.token_ids][:-1])
        return output

    names = ("idle", "talks", "branches")
    async with HarborServer(by_task):
        worker = create_worker(AgentLoopWorker, relay_proxy)
        worker.rollout_config.enable_rollout_routing_replay = True
        worker.llm_client = RolloutServers(sampled).client(worker.config)
        runs = [
            worker._run_agent_loop(
                dict(SAMPLING),
                trajectory(),
                agent_name="remote_agent",
                trace=False,
                **sample(tmp_path / name),
            )
            for name in names
        ]
        data = worker._postprocess(await asyncio.gather(*runs))
    experts_data = data.batch["routed_experts"]
    assert experts_data.shape == (3, PROMPT_LENGTH + RESPONSE_LENGTH, LAYERS, CHOSEN)
    assert data.batch["response_mask"].sum(dim=1).tolist() == [0, 12, 12]
    assert not experts_data[0].any()
    for row in (1, 2):
        ids = data.batch["input_ids"][row][data.batch["attention_mask"][row].bool()].tolist()
        start = PROMPT_LENGTH - int(data.batch["attention_mask"][row][:PROMPT_LENGTH].sum())
        assert experts_data[row][start : start + len(ids) - 1].tolist() == experts(ids[:-1]).tolist()


async def test_verls_transfer_queue_gets_every_row_and_grpo_an_advantage_for_each(
    relay_proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np
    import torch
    from verl import DataProto
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.v1 import agent_loop_tq, utils

    stored: dict[str, Any] = {}

    class Queue:
        @staticmethod
        async def async_kv_batch_put(keys: list[str], fields: Any, tags: Any, partition_id: str) -> None:
            for i, key in enumerate(keys):
                stored[key] = (fields[i], tags[i])

    monkeypatch.setattr(agent_loop_tq, "tq", Queue)
    kind = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
    async with HarborServer(by_task):
        worker = create_worker(kind, relay_proxy, transfer_queue={"enable": True})
        for number, name in enumerate(("talks", "branches", "idle")):
            row = sample(tmp_path / name, uid="u", session_id=number, global_steps=3)
            await worker._run_agent_loop(
                dict(SAMPLING), trajectory(), agent_name="remote_agent", trace=False, **row
            )
    assert list(stored) == ["u_0_0", "u_1_0", "u_1_1", "u_2_0"]
    masks = [row["response_mask"] for row, _ in stored.values()]
    assert [int(mask.sum()) for mask in masks] == [12, 6, 12, 0]
    assert [float(row["rm_scores"].sum()) for row, _ in stored.values()] == [1.0, 2.0, 2.0, 0.5]
    assert [tag["min_global_steps"] for _, tag in stored.values()] == [3, 3, 3, 2]
    pad = torch.nn.utils.rnn.pad_sequence
    batch = DataProto.from_dict(
        tensors={
            "response_mask": pad(masks, batch_first=True),
            "token_level_rewards": pad([row["rm_scores"] for row, _ in stored.values()], batch_first=True),
        },
        non_tensors={"uid": np.array(["u"] * 4, dtype=object)},
    )
    data = utils.compute_advantage_for_multi_trajectories(batch, list(stored), AdvantageEstimator.GRPO)
    peaks = data.batch["advantages"].abs().amax(dim=1).tolist()
    assert peaks[1] == peaks[2] > 0
    assert peaks[3] == 0, "a row that trains nothing has no advantage"


#: A fake Claude Code, which checks how it is started, and sends two turns of a conversation and one of a sub-agent.
CLAUDE = """
import json, os, sys, urllib.request

assert sys.argv[1] == "-p" and sys.argv[3] == "--allowedTools", sys.argv
values = [os.environ[name] for name in ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "ENABLE_TOOL_SEARCH", "HOME")]
assert values == ["1", "false", os.getcwd()], values

def call(*messages):
    body = {"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 16, "messages": messages}
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["ANTHROPIC_AUTH_TOKEN"]}
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    answer = json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))
    assert answer["model"] == "policy", answer
    return {"role": "assistant", "content": answer["content"]}

def user(text):
    return {"role": "user", "content": text}

first = call(user(sys.argv[2]))
call(user(sys.argv[2]), first, user("Go on."))
call(user("You are a sub-agent."))
"""


async def test_verl_runs_claude_code_by_its_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with verl's complete configuration: its worker reads the file, and makes a batch of the output."""
    import verl
    from hydra import compose, initialize_config_dir
    from transformers import LlamaConfig
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    (tmp_path / "bin").mkdir()
    claude = tmp_path / "bin" / "claude"
    claude.write_text(f"#!{sys.executable}\n{CLAUDE}")
    claude.chmod(0o755)
    monkeypatch.setenv("PATH", f"{claude.parent}:{os.environ['PATH']}")
    LlamaConfig(num_hidden_layers=1, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    text = (REPOSITORY / "docs" / "verl.md").read_text()
    command = re.search(r"^      --command '(.*claude.*)'$", text, re.M)
    assert command is not None
    agents = ["--runner", "command", "--sandbox", "none", "--command", command[1], "--verifier", "true"]
    with start_proxy(tmp_path) as proxy, start_rollouts(tmp_path, proxy, *agents) as both:
        monkeypatch.setenv("PROXY_SERVER_URL", both.url)
        monkeypatch.setenv("LLM_PROXY_ROLLOUT_SERVER", both.rollouts_url)
        overrides = [
            f"actor_rollout_ref.model.path={tmp_path}/model",
            f"actor_rollout_ref.rollout.agent.agent_loop_config_path={CLAUDE_CODE}",
            "actor_rollout_ref.rollout.agent.default_agent_loop=remote_agent",
            "actor_rollout_ref.rollout.name=vllm",
            f"data.max_prompt_length={PROMPT_LENGTH}",
            f"data.max_response_length={RESPONSE_LENGTH}",
        ]
        folder = Path(verl.__file__).parent / "trainer" / "config"
        with initialize_config_dir(str(folder), version_base=None):
            config = compose("ppo_trainer", overrides=overrides)
        worker = AgentLoopWorker(config, RolloutServers().client(config))
        name = config.actor_rollout_ref.rollout.agent.default_agent_loop
        row = sample(tmp_path / "task")
        output = await worker._run_agent_loop(
            dict(SAMPLING), trajectory(), agent_name=name, trace=False, **row
        )
    data = worker._postprocess([output])
    assert data.non_tensor_batch["remote_agent/failed"].tolist() == [0]
    assert data.batch["rm_scores"].sum().item() == 1
    assert data.batch["response_mask"].sum().item() == 12, "the longer of two rows"
