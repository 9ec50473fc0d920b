"""RemoteAgentLoop against the real proxy, with agents of a fake Harbor server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, _agent_loop_registry

from helpers.harbor import Agent, HarborServer, Run, completed
from helpers.loops import SAMPLING, get_metadata, make_loop, sample
from helpers.proxy import Proxy
from helpers.rollout_servers import Config, RolloutServers, completion, trainer_config
from llm_proxy_verl import agent_loop


async def rollout(
    proxy: Proxy,
    run: Run,
    row: dict[str, Any],
    *,
    servers: RolloutServers | None = None,
    config: Config | None = None,
    **options: Any,
) -> Any:
    async with HarborServer(run):
        loop = make_loop(servers or RolloutServers(), proxy, config=config, **options)
        return await loop.run(dict(SAMPLING), **row)


async def converse_three_times(agent: Agent) -> dict[str, Any]:
    await agent.converse(3)
    return completed(tests=1.0, style=0.25)


def test_it_is_registered_with_verl_as_remote_agent() -> None:
    entry = _agent_loop_registry["remote_agent"]
    assert entry == {"_target_": "llm_proxy_verl.agent_loop.RemoteAgentLoop"}


async def test_verl_gets_the_sampled_tokens_and_the_reward(
    relay_proxy: Proxy, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    servers = RolloutServers()
    output = await rollout(relay_proxy, converse_three_times, sample(tmp_path / "sea"), servers=servers)
    assert isinstance(output, AgentLoopOutput)
    first, *_, last = servers.requests
    assert output.prompt_ids == first.prompt_ids
    assert output.prompt_ids + output.response_ids == last.prompt_ids + last.output.token_ids
    rows = list(zip(output.response_ids, output.response_mask, output.response_logprobs or [], strict=True))
    assert [token for token, mask, _ in rows if mask] == [
        token for request in servers.requests for token in request.output.token_ids
    ]
    assert [logprob for _, mask, logprob in rows if mask] == [
        logprob for request in servers.requests for logprob in request.output.log_probs or []
    ]
    assert all(logprob == 0.0 for _, mask, logprob in rows if not mask)
    assert (output.reward_score, output.num_turns) == (1.25, 3)
    assert output.metrics.generate_sequences > 0
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (3, 3)
    metadata = get_metadata(output)
    assert metadata["reward_components"] == {"tests": 1.0, "style": 0.25}
    assert (metadata["agent_status"], metadata["tries"], metadata["inert"], metadata["failed"]) == (
        "completed",
        1,
        0,
        0,
    )
    session = await relay_proxy.get(http, f"/sessions/{metadata['session_id']}")
    assert (session["completed"], session["reward"]) == (True, 1.25)
    assert session["sampling_params"] == {name: SAMPLING[name] for name in SAMPLING if name != "logprobs"}
    assert metadata["trial_id"].startswith("sea-")


async def test_the_trainers_sampling_parameters_have_precedence_over_the_agents(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    async def overriding(agent: Agent) -> dict[str, Any]:
        await agent.chat([{"role": "user", "content": "Hello"}], temperature=0.1, top_p=0.2)
        return completed(reward=1.0)

    servers = RolloutServers()
    await rollout(relay_proxy, overriding, sample(tmp_path / "overriding"), servers=servers)
    params = servers.requests[0].sampling_params
    assert (params["temperature"], params["top_p"], params["max_tokens"]) == (1.0, 1.0, 16)


async def test_a_failed_attempt_trains_nothing(
    relay_proxy: Proxy, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    late: list[Any] = []

    async def fail_twice(agent: Agent) -> dict[str, Any]:
        await agent.converse(agent.number + 1, question=f"Try {agent.number}")
        if agent.number == 2:
            # The agent of the first attempt does not know that its session was aborted.
            with pytest.raises(RuntimeError, match="409: session_ended"):
                await late[0].converse(1)
            return completed(reward=1.0)
        late.append(agent)
        raise RuntimeError("crashed")

    servers = RolloutServers()
    output = await rollout(relay_proxy, fail_twice, sample(tmp_path / "fails"), servers=servers)
    sampled = [token for request in servers.requests[-3:] for token in request.output.token_ids]
    trained = zip(output.response_ids, output.response_mask, strict=True)
    assert [token for token, mask in trained if mask] == sampled
    metadata = get_metadata(output)
    assert (metadata["tries"], metadata["session_id"]) == (3, f"{metadata['trial_id']}~3")
    first = await relay_proxy.get(http, f"/sessions/{get_metadata(output)['trial_id']}")
    assert first["status"] == "aborted"


async def test_an_agent_that_always_fails_results_in_a_masked_row(relay_proxy: Proxy, tmp_path: Path) -> None:
    async def crash(agent: Agent) -> dict[str, Any]:
        await agent.converse(2)
        raise RuntimeError("out of memory")

    output = await rollout(relay_proxy, crash, sample(tmp_path / "crash"), max_retries=1)
    assert_masked(output)
    assert output.reward_score == 0.0
    about = get_metadata(output)
    assert (about["failed"], about["tries"], about["error"]) == (1, 2, "out of memory")
    assert output.extra_fields["reward_extra_info"]["remote_agent/failed"] == 1


async def test_a_sample_without_a_reward_gets_the_mean_of_its_prompts_others(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    async def some_crash(agent: Agent) -> dict[str, Any]:
        await agent.converse(1)
        name = agent.metadata["task_path"].rsplit("/", 1)[1]
        if name == "crash":
            raise RuntimeError("out of disk")
        return completed(reward=float(name))

    servers = RolloutServers()
    groups = [("a", "1"), ("a", "crash"), ("a", "0.25"), ("b", "crash"), ("b", "0"), ("c", "crash")]
    async with HarborServer(some_crash):
        outputs: list[Any] = await asyncio.gather(
            *(
                make_loop(servers, relay_proxy, max_retries=0).run(
                    dict(SAMPLING), **sample(tmp_path / name, uid=uid)
                )
                for uid, name in groups
            )
        )
    assert [output.reward_score for output in outputs] == [1.0, 0.625, 0.25, 0.0, 0.0, 0.0]
    assert [get_metadata(output)["no_reward"] for output in outputs] == [0, 1, 0, 1, 0, 1]


async def test_an_agent_without_requests_results_in_a_masked_row_and_a_warning(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    async def idle(agent: Agent) -> dict[str, Any]:
        return completed(reward=0.5)

    output = await rollout(relay_proxy, idle, sample(tmp_path / "idle"))
    assert_masked(output)
    assert output.reward_score == 0.5
    about = get_metadata(output)
    assert (about["inert"], about["failed"], about["error"]) == (1, 0, "the agent sent no request")
    assert output.extra_fields["reward_extra_info"]["remote_agent/inert"] == 1


async def test_a_row_that_trains_nothing_has_the_step_of_the_request_for_its_sample(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    async def idle(agent: Agent) -> dict[str, Any]:
        return completed(reward=0.0)

    steps = []
    for name, more in (("fifth", {"global_steps": 5}), ("none", {})):
        output = await rollout(relay_proxy, idle, sample(tmp_path / name, **more))
        steps.append((output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]))
    assert steps == [(4, 4), (None, None)]


async def test_a_row_of_unknown_steps_has_the_step_of_the_request_and_a_warning(
    relay_proxy: Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def unversioned(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        return completion(prompt_ids, step=None)

    async def named(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        output = completion(prompt_ids)
        output.extra_fields = {"global_steps": "step-3"}
        return output

    async def converse(agent: Agent) -> dict[str, Any]:
        await agent.converse(2)
        return completed(reward=1.0)

    agent_loop._warn_of_unknown_steps.cache_clear()
    steps = []
    for name, script in (("known", None), ("unversioned", unversioned), ("named", named)):
        servers = RolloutServers() if script is None else RolloutServers(script)
        row = sample(tmp_path / name, global_steps=5)
        output = await rollout(relay_proxy, converse, row, servers=servers)
        assert sum(output.response_mask) == 12
        steps.append((output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]))
    assert steps == [(3, 3), (4, 4), (4, 4)]
    warnings = [record for record in caplog.records if "staleness" in record.getMessage()]
    assert len(warnings) == 1


async def test_turns_that_are_not_exact_train_nothing(relay_proxy: Proxy, tmp_path: Path) -> None:
    async def silent(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        return completion(prompt_ids).model_copy(update={"log_probs": None})

    servers = RolloutServers(silent)
    output = await rollout(relay_proxy, converse_three_times, sample(tmp_path / "inexact"), servers=servers)
    assert_masked(output)
    assert get_metadata(output)["inexact_turns"] == 3
    assert get_metadata(output)["error"].startswith("its turns are not exact")


def assert_masked(output: Any) -> None:
    assert len(output.prompt_ids) == len(output.response_ids) == 1
    assert (output.response_mask, output.response_logprobs, output.num_turns) == ([0], [0.0], 0)


async def branch(agent: Agent) -> dict[str, Any]:
    """Sends one request as a sub-agent, and then a longer conversation."""
    await agent.chat([{"role": "user", "content": "Sub-agent, look there."}])
    await agent.converse(2)
    return completed(reward=1.0)


async def test_verl_gets_the_longest_row_of_a_branched_session_and_the_count_of_the_rest(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    servers = RolloutServers()
    output = await rollout(relay_proxy, branch, sample(tmp_path / "longest"), servers=servers)
    assert output.prompt_ids == servers.requests[1].prompt_ids
    assert (output.num_turns, get_metadata(output)["left_out_turns"]) == (2, 1)


async def test_verl_gets_every_row_with_the_main_one_last_where_it_accepts_several_outputs(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    servers, config = RolloutServers(), trainer_config()
    config["transfer_queue"] = Config(enable=True)
    row = sample(tmp_path / "all", uid="u", session_id=0, global_steps=3)
    outputs = await rollout(relay_proxy, branch, row, servers=servers, config=config)
    assert [output.prompt_ids for output in outputs] == [
        request.prompt_ids for request in servers.requests[:2]
    ]
    assert [sum(output.response_mask) for output in outputs] == [6, 12]
    assert [output.reward_score for output in outputs] == [1.0, 1.0]
    assert outputs[0].extra_fields["reward_extra_info"] is not outputs[1].extra_fields["reward_extra_info"]
    assert get_metadata(outputs[0])["num_rows"] == 2


async def test_rows_are_truncated_to_the_lengths_that_verl_pads_to(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    config = trainer_config(prompt_length=8, response_length=10)
    servers = RolloutServers()
    row = sample(tmp_path / "cut")
    output = await rollout(relay_proxy, converse_three_times, row, servers=servers, config=config)
    assert output.prompt_ids == servers.requests[0].prompt_ids[-8:]
    assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs) == 10
    assert (get_metadata(output)["truncated"], get_metadata(output)["prompt_truncated"]) == (1, 1)


async def test_an_agent_out_of_time_has_failed_or_is_kept_as_configured(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    async def slow(agent: Agent) -> dict[str, Any]:
        await agent.converse(1)
        return {**completed(), "status": "timeout", "error": "30 minutes"}

    options: dict[str, Any] = {"max_retries": 0}
    failed = await rollout(relay_proxy, slow, sample(tmp_path / "slow"), **options)
    kept = await rollout(relay_proxy, slow, sample(tmp_path / "slow"), **options, on_time_limit="keep")
    assert (get_metadata(failed)["failed"], get_metadata(kept)["failed"]) == (1, 0)
    assert (sum(failed.response_mask), sum(kept.response_mask)) == (0, 6)
    metadata = get_metadata(kept)
    assert (metadata["agent_status"], kept.reward_score, metadata["no_reward"]) == ("timeout", 0.0, 1)


async def test_a_reward_that_the_session_received_elsewhere_counts_when_the_runner_has_none(
    relay_proxy: Proxy, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async def judged_elsewhere(agent: Agent) -> dict[str, Any]:
        await agent.converse(1)
        session = agent.base_url.removesuffix("/v1").rsplit("/", 1)[1]
        url, given = f"{relay_proxy.url}/sessions/{session}/reward", {"reward": 0.75, "turns": {"0": 0.5}}
        async with http.post(url, json=given) as response:
            assert response.status == 200
        return completed()

    output = await rollout(relay_proxy, judged_elsewhere, sample(tmp_path / "judged"))
    assert (output.reward_score, get_metadata(output)["no_reward"]) == (0.75, 0)
    assert output.extra_fields["turn_scores"] == [0.5]
    assert get_metadata(output)["turn_rewards"] == [
        {"start": 0, "end": len(output.response_ids), "reward": 0.5}
    ]


async def test_verls_reward_function_judges_every_rollout_if_configured(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    output = await rollout(relay_proxy, converse_three_times, sample(tmp_path / "verl"), reward="verl")
    assert output.reward_score is None
    assert get_metadata(output)["reward_components"] == {"tests": 1.0, "style": 0.25}


async def test_a_dead_server_of_several_fails_no_rollout(
    relay_proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_proxy.rollouts._RETRY_LIMIT_S", 0)
    dead = "http://127.0.0.1:9"
    where = {"proxy_urls": [dead, relay_proxy.url], "rollout_servers": [dead, relay_proxy.rollouts_url]}
    for number in range(4):
        row = sample(tmp_path / f"several-{number}")
        output = await rollout(relay_proxy, converse_three_times, row, worker=True, **where)
        assert sum(output.response_mask) == 18


async def test_agents_get_the_address_that_they_can_reach(relay_proxy: Proxy, tmp_path: Path) -> None:
    seen: list[str] = []

    async def look(agent: Agent) -> dict[str, Any]:
        seen.append(agent.base_url)
        return completed(reward=1.0)

    output = await rollout(relay_proxy, look, sample(tmp_path / "host"), agent_host="localhost")
    port = relay_proxy.url.rsplit(":", 1)[1]
    assert seen == [f"http://localhost:{port}/{get_metadata(output)['session_id']}/v1"]


async def test_the_dataset_row_is_not_changed(relay_proxy: Proxy, tmp_path: Path) -> None:
    row = sample(tmp_path / "own", extra_info={"notes": ["a"]})
    before = repr(row)
    await rollout(relay_proxy, converse_three_times, row)
    assert repr(row) == before


async def test_fifty_concurrent_loops_share_one_worker(
    relay_proxy: Proxy, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    counts: list[int] = []

    async def count_workers(agent: Agent) -> dict[str, Any]:
        if int(agent.metadata["task_path"].rsplit("-", 1)[1]) % 7 == 0 and agent.number == 0:
            await agent.converse(1)
            raise RuntimeError("crashed")
        await agent.converse(3, question=agent.metadata["task_path"])
        counts.append(len(await relay_proxy.worker_ids(http)))
        return completed(reward=float(agent.metadata["task_path"].rsplit("-", 1)[1]))

    servers, config = RolloutServers(), trainer_config()
    client = servers.client(config)
    async with HarborServer(count_workers):
        outputs: list[Any] = await asyncio.gather(
            *(
                make_loop(servers, relay_proxy, config=config, client=client).run(
                    dict(SAMPLING), **sample(tmp_path / f"task-{number}")
                )
                for number in range(50)
            )
        )
    assert set(counts) == {1}
    assert [output.reward_score for output in outputs] == list(range(50))
    assert {sum(output.response_mask) for output in outputs} == {18}
    completions = {tuple(request.prompt_ids): request.output.token_ids for request in servers.requests}
    for output in outputs:
        sequence = output.prompt_ids + output.response_ids
        for start in range(len(output.prompt_ids), len(sequence)):
            if tuple(sequence[:start]) in completions:
                sampled = completions[tuple(sequence[:start])]
                assert sequence[start : start + len(sampled)] == sampled
