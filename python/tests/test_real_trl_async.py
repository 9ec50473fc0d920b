"""TRL's AsyncGRPO trains on agents of the proxy, as in docs/trl.md. Skipped where TRL or OpenEnv is missing.

Fakes replace what requires a GPU: its peak FLOPS, the attention kernel (by the same sums), and the transfer of
weights (by a copy). TRL's own worker runs in a separate process.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.proxy import REPOSITORY, start_proxy
from test_real_trl import AGENT, GROUP, ON_A_CPU, policy, tokenizer  # noqa: F401 (a fixture)

pytest.importorskip("trl", reason="TRL is not installed here")
pytest.importorskip("openenv", reason="OpenEnv is not installed here")
pytestmark = pytest.mark.timeout(300)

STEPS = 2


def documented(block: str) -> str:
    page = (REPOSITORY / "docs" / "trl.md").read_text()
    code = re.search(rf"^```python trl {block}\n(.*?)^```$", page, re.S | re.M)
    assert code is not None
    return code[1]


def varlen_attention(
    query: Any, key: Any, value: Any, starts_q: Any, starts_k: Any, *_: Any, softmax_scale: float, **__: Any
) -> Any:
    """Computes each segment over its own path, the last query at the last key, as TRL's tree attention kernel does."""
    import torch

    heads = query.shape[1] // key.shape[1]
    found = []
    for segment in range(len(starts_q) - 1):
        q = query[starts_q[segment] : starts_q[segment + 1]].transpose(0, 1)
        k, v = (
            one[starts_k[segment] : starts_k[segment + 1]].transpose(0, 1).repeat_interleave(heads, 0)
            for one in (key, value)
        )
        scores = q @ k.transpose(1, 2) * softmax_scale
        seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        found.append((scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v).transpose(0, 1))
    return torch.cat(found)


class CopiedWeights:
    """Replaces NCCL: the engine samples from the trainer's weights of the first step."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.times = 0

    def init_weight_transfer(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def destroy(self) -> None: ...

    def send_weights(self, weights: Any) -> None:
        if self.times == 0:
            self.engine.model.load_state_dict(dict(weights), strict=False)
        self.times += 1


def test_trl_trains_asynchronously_on_what_the_proxy_recorded(
    tmp_path: Path,
    tokenizer: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch
    from datasets import Dataset
    from trl.experimental.async_grpo import (
        AsyncGRPOConfig,
        async_grpo_trainer,
        async_rollout_worker,
        packing,
    )

    from helpers.policy_engine import PolicyEngine, running

    monkeypatch.setattr(async_rollout_worker, "is_vllm_available", lambda: True)
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)
    monkeypatch.setattr(
        packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=varlen_attention)
    )
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "agents.py").write_text(documented("async"))
    (tmp_path / "agent.py").write_text(AGENT)
    first = policy(tokenizer)
    first.save_pretrained(tmp_path / "model")
    other = policy(tokenizer)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(0.5)
    # TRL has response templates for released models only, and does not parse the completions of an agent.
    monkeypatch.setattr(tokenizer, "response_template", {}, raising=False)
    scope: dict[str, Any] = {}
    exec(documented("train"), scope)
    runner = [
        "--runner",
        "command",
        "--sandbox",
        "none",
        "--command",
        f"{sys.executable} {tmp_path}/agent.py",
    ]
    runner += ["--verifier", 'wc -c < "$AGENT_OUTPUT_FILE" > "$REWARD_FILE"']
    config = AsyncGRPOConfig(
        output_dir=str(tmp_path / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=GROUP,
        num_generations=GROUP,
        max_inflight_tasks=GROUP,
        token_budget=0,
        learning_rate=0.01,
        **ON_A_CPU,
    )
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Tell me about {what}."}]} for what in ("sea", "sky")]
    )
    with (
        running(PolicyEngine(other, tokenizer.eos_token_id)) as engine,
        start_proxy(
            tmp_path, "--engine-url", engine.url, "--engine-kind", "vllm", *runner, mode="local"
        ) as proxy,
    ):
        monkeypatch.setenv("PROXY_SERVER_URL", proxy.url)
        weights = CopiedWeights(engine)
        trainer = scope["trainer_of"](
            str(tmp_path / "model"), dataset, tokenizer, config, weight_transfer=weights
        )
        taken: list[Any] = []
        pack = packing.TreeRow.add

        def record_sample(row: Any, sample: Any) -> None:
            taken.append(sample)
            pack(row, sample)

        monkeypatch.setattr(packing.TreeRow, "add", record_sample)
        trainer.train()
        steps = [entry for entry in trainer.state.log_history if "loss" in entry]
        assert len(steps) == STEPS
        assert steps[0]["ratio"] == pytest.approx(1, abs=1e-3), "the trainer's logprobs are the recorded ones"
        assert steps[0]["kl"] == pytest.approx(0, abs=1e-4)
        assert weights.times == STEPS + 1
        check_recorded(proxy.url, taken)


def check_recorded(url: str, taken: list[Any]) -> None:
    """Checks that the trained tokens are the recorded ones, and that their advantages differ."""
    from llm_proxy import Client

    with Client(url) as client:
        rows = [row for found in client.sessions() for row in client.session(found["session_id"]).rows()]
    recorded = {(*row.prompt_ids, *row.response_ids): row for row in rows}
    assert len(taken) >= GROUP * STEPS
    for sample in taken:
        row = recorded[tuple(sample["input_ids"].tolist())]
        prompt = [0] * len(row.prompt_ids)
        assert sample["completion_mask"].tolist() == prompt + row.response_mask
        assert sample["old_log_probs"].tolist() == pytest.approx(prompt + row.response_logprobs, abs=1e-6)
        assert sample["metrics"]["reward"] == row.reward
        assert re.fullmatch("0+1+0+1+", "".join(map(str, sample["completion_mask"].tolist())))
    assert len({sample["advantage"] for sample in taken}) > 2
