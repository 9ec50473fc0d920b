"""Routed experts: from verl's engine through the real proxy to verl's field."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.harbor import Agent, HarborServer, completed
from helpers.loaders import LOADERS
from helpers.loops import SAMPLING, make_loop, sample
from helpers.proxy import Proxy
from helpers.rollout_servers import Config, RolloutServers, completion, trainer_config
from llm_proxy_verl.details import pack_experts, unpack_experts

LAYERS, CHOSEN = 2, 3


def experts(token_ids: list[int]) -> Any:
    """Returns the experts that the layers choose for each token, as a function of the token."""
    return np.array(
        [
            [[(token * 31 + layer * 7 + at) % 256 for at in range(CHOSEN)] for layer in range(LAYERS)]
            for token in token_ids
        ],
        np.uint8,
    )


async def test_verl_gets_the_experts_that_its_engine_chose(relay_proxy: Proxy, tmp_path: Path) -> None:
    async def sampled(prompt_ids: list[int], _params: dict[str, Any]) -> Any:
        output = completion(prompt_ids)
        output.routed_experts = experts([*prompt_ids, *output.token_ids][:-1])
        return output

    async def converse(agent: Agent) -> dict[str, Any]:
        await agent.converse(3)
        return completed(reward=1.0)

    servers = RolloutServers(sampled)
    config = trainer_config(enable_rollout_routing_replay=True)
    async with HarborServer(converse):
        loop = make_loop(servers, relay_proxy, config=config)
        output = await loop.run(dict(SAMPLING), **sample(tmp_path / "lake"))
    sequence = output.prompt_ids + output.response_ids
    assert output.routed_experts.dtype == np.uint8
    assert output.routed_experts.tolist() == experts(sequence[:-1]).tolist()


async def test_a_row_that_is_masked_for_lack_of_experts_is_not_the_last_one(
    relay_proxy: Proxy, tmp_path: Path
) -> None:
    async def some_experts(prompt_ids: list[int], params: dict[str, Any]) -> Any:
        output = completion(prompt_ids, count=9 if params["max_tokens"] == 9 else 4)
        if params["max_tokens"] != 9:
            output.routed_experts = experts([*prompt_ids, *output.token_ids][:-1])
        return output

    async def branch(agent: Agent) -> dict[str, Any]:
        await agent.chat([{"role": "user", "content": "How wide is it?"}], max_tokens=9)
        await agent.chat([{"role": "user", "content": "How deep is it?"}], max_tokens=4)
        return completed(reward=1.0)

    config = trainer_config(enable_rollout_routing_replay=True)
    config["transfer_queue"] = Config(enable=True)
    async with HarborServer(branch):
        loop = make_loop(RolloutServers(some_experts), relay_proxy, config=config)
        row = sample(tmp_path / "rows", uid="u", session_id=0)
        masked, trained = await loop.run({**SAMPLING}, **row)
    assert [len(output.response_mask) for output in (masked, trained)] == [9, 4]
    assert [sum(output.response_mask) for output in (masked, trained)] == [0, 4]


async def test_only_what_verl_requests_is_recorded(relay_proxy: Proxy, tmp_path: Path) -> None:
    async def converse(agent: Agent) -> dict[str, Any]:
        await agent.converse(1)
        return completed(reward=1.0)

    async with HarborServer(converse):
        loop = make_loop(RolloutServers(), relay_proxy)
        output = await loop.run(dict(SAMPLING), **sample(tmp_path / "pond"))
    assert output.routed_experts is None


def test_experts_are_packed_from_the_requested_token_in_a_type_of_the_wire() -> None:
    packed = base64.b64decode(pack_experts(np.arange(24, dtype=np.int64).reshape(4, 2, 3), 1, 5) or "")
    length = int.from_bytes(packed[:8], "little")
    header = json.loads(packed[8 : 8 + length])
    assert header["__metadata__"] == {"start": "1"}
    assert (header["experts"]["dtype"], header["experts"]["shape"]) == ("I32", [3, 2, 3])
    assert np.frombuffer(packed[8 + length :], "<i4").tolist() == list(range(6, 24))
    assert pack_experts(np.zeros((4, 2, 3)), 0, 5) is None, "numbers that are not experts"
    assert pack_experts(np.zeros((4, 2), np.uint8), 4, 5) is None, "no new tokens"


def test_experts_of_a_row_end_with_the_last_reported_token() -> None:
    data = base64.b64encode(bytes(range(8))).decode()
    encoded = {"dtype": "uint8", "shape": [4, 1, 2], "known": [[0, 2], [3, 4]], "data": data}
    assert unpack_experts({"routed_experts": encoded}).tolist() == [[[0, 1]], [[2, 3]]]
    assert unpack_experts({"routed_experts": {**encoded, "known": [[1, 4]]}}) is None
    assert unpack_experts({"routed_experts": None}) is None
    assert unpack_experts({}) is None


@pytest.mark.parametrize("number", range(len(LOADERS)))
def test_rows_are_loaded_as_documented(
    number: int, rows_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs, code = LOADERS[number]
    if needs:
        pytest.importorskip(needs, reason=f"{needs} is not installed here")
    monkeypatch.chdir(rows_folder)
    scope: dict[str, Any] = {}
    exec(LOADERS[0][1], scope)
    if needs == "torch":
        exec("import torch", scope)
    exec(code, scope)
    row = scope["rows"][0]
    assert row["response_logprobs"] == [-0.25, 0.0]
    assert row["sampling_mask"] == [[3, 9], None]


def test_a_sample_of_prime_rl_is_a_row_from_its_prompt_on(rows_folder: Path) -> None:
    pytest.importorskip("prime_rl", reason="neither prime-rl nor its fake is installed")
    (row,) = [json.loads(line) for line in (rows_folder / "rows.jsonl").read_text().splitlines()]
    failed = {**row, "response_mask": [0, 0], "reward_score": None}
    scope: dict[str, Any] = {"rows": [row, {**row, "reward_score": 0.0}, failed]}
    exec(dict(LOADERS)["prime_rl"], scope)
    better, worse = scope["samples"]
    assert (better.token_ids, better.mask) == ([1, 2, 3, 4], [False, False, True, False])
    assert (better.logprobs, better.temperatures) == ([0.0, 0.0, -0.25, 0.0], [1.0] * 4)
    assert better.advantages == [0.0, 0.0, 0.25, 0.0]
    assert worse.advantages == [0.0, 0.0, -0.25, 0.0]


def test_rows_of_one_rollout_are_one_rollout_to_slime(rows_folder: Path) -> None:
    types = pytest.importorskip("slime.utils.types", reason="neither slime nor its fake is installed")
    (row,) = [json.loads(line) for line in (rows_folder / "rows.jsonl").read_text().splitlines()]
    branch = {**row, "response_ids": [5], "response_mask": [1], "response_logprobs": [-0.5]}
    end = row["extra_fields"]
    other = {**row, "sample_index": 1, "extra_fields": {**end, "truncated": True}}
    cut = {**row, "sample_index": 2, "extra_fields": {**end, "finish_reason": "length"}}
    failed = {**row, "sample_index": 3, "reward_score": None}
    scope: dict[str, Any] = {"rows": [row, branch, other, cut, failed]}
    exec(dict(LOADERS)["slime"], scope)
    samples = scope["samples"]
    assert [sample.rollout_id for sample in samples] == [0, 0, 1, 2, 3]
    assert [sample.index for sample in samples] == [0, 1, 2, 3, 4]
    assert [sample.group_index for sample in samples] == [0] * 5
    assert [sample.tokens for sample in samples[:3]] == [[1, 2, 3, 4], [1, 2, 5], [1, 2, 3, 4]]
    ends = ["COMPLETED", "COMPLETED", "TRUNCATED", "TRUNCATED", "ABORTED"]
    assert [sample.status for sample in samples] == [types.Sample.Status[end] for end in ends]
    assert [sample.remove_sample for sample in samples] == [False] * 4 + [True]
    assert [sample.reward for sample in samples] == [0.5] * 5, "the mean of the group does not move"
    for one in samples:
        assert len(one.loss_mask) == len(one.rollout_log_probs) == one.response_length
