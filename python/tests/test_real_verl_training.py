"""verl's own advantages and losses of our rows, on a CPU, compared with the trainer of examples/tiny_grpo.

With the options that docs/verl.md lists as equivalent. Skipped where verl is not installed.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from helpers.harbor import HarborServer
from helpers.loops import SAMPLING, sample
from helpers.proxy import REPOSITORY, Proxy
from test_real_verl import PROMPT_LENGTH, by_task, create_worker, trajectory

pytestmark = [pytest.mark.real_verl, pytest.mark.timeout(240)]

SAMPLES = ("talks", "branches", "talks", "idle")


def documented_options() -> list[str]:
    text = (REPOSITORY / "docs" / "verl.md").read_text()
    table = text.split("<!-- options of verl that do the same -->")[1].split("<!-- /options")[0]
    return re.findall(r"`([\w.]+=[^`]+)`", table)


def verl_config() -> Any:
    """Returns verl's own configuration with those options."""
    import verl
    from hydra import compose, initialize_config_dir

    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        return compose("ppo_trainer", overrides=documented_options())


@pytest.fixture
async def batch(relay_proxy: Proxy, tmp_path: Path) -> Any:
    """A group of rollouts, as a batch of verl's worker."""
    import numpy as np
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    async with HarborServer(by_task):
        worker = create_worker(AgentLoopWorker, relay_proxy)
        rows = [sample(tmp_path / name) for name in SAMPLES]
        runs = (
            worker._run_agent_loop(
                dict(SAMPLING), trajectory(), agent_name="remote_agent", trace=False, **row
            )
            for row in rows
        )
        data = worker._postprocess(await asyncio.gather(*runs))
    data.non_tensor_batch["uid"] = np.array(["one task"] * len(SAMPLES), dtype=object)
    return data


def tiny_lines(data: Any) -> list[dict[str, Any]]:
    """Returns the same rows as `llm-proxy rollout` writes them, for the tiny trainer."""
    lines = []
    for number, row in enumerate(data.batch):
        is_prompt, is_response = (
            row["attention_mask"].bool().split([PROMPT_LENGTH, len(row["attention_mask"]) - PROMPT_LENGTH])
        )
        lines.append(
            {
                "task_index": 0,
                "sample_index": number,
                "reward_score": float(row["rm_scores"].sum()),
                "prompt_ids": row["prompts"][is_prompt].tolist(),
                "response_ids": row["responses"][is_response].tolist(),
                "response_mask": row["response_mask"][is_response].tolist(),
                "response_logprobs": row["rollout_log_probs"][is_response].tolist(),
                "metrics": {"padding": int(data.non_tensor_batch["remote_agent/padding"][number])},
                "extra_fields": {"weight_version_min": "3", "weight_version_max": "3"},
            }
        )
    return lines


async def test_verls_loss_has_the_gradient_of_the_tiny_trainers_with_equivalent_options(
    batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from omegaconf import open_dict
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
    from verl.trainer.ppo.rollout_corr_helper import apply_bypass_mode

    monkeypatch.syspath_prepend(str(REPOSITORY / "python" / "examples"))
    from tiny_grpo.trainer import Settings, Trainer, proxy_rows, sampled_logprobs

    mask = batch.batch["response_mask"]
    # A policy that has moved since it sampled: some tokens within the clip, some far outside, on both sides.
    moved = 1.5 * torch.sin(torch.arange(int(mask.sum())).float())

    config = verl_config()
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    assert algorithm.rollout_correction.bypass_mode
    apply_bypass_mode(batch, algorithm.rollout_correction, actor.policy_loss)
    with open_dict(actor):
        actor.global_batch_info = {}
    advantages, _ = get_adv_estimator_fn(algorithm.adv_estimator)(
        token_level_rewards=batch.batch["rm_scores"],
        response_mask=mask,
        index=batch.non_tensor_batch["uid"],
        norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
    )
    verls = moved.clone().requires_grad_()
    log_prob = batch.batch["old_log_probs"].masked_scatter(
        mask.bool(), batch.batch["old_log_probs"][mask.bool()] + verls
    )
    loss, _ = get_policy_loss_fn(actor.policy_loss.loss_mode)(
        old_log_prob=batch.batch["old_log_probs"],
        log_prob=log_prob,
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode=actor.loss_agg_mode,
        config=actor,
    )
    loss.backward()

    ours = torch.nn.ParameterList([moved.clone()])
    trainer = object.__new__(Trainer)
    trainer.settings, trainer.policy, trainer.system = Settings(), ours, None
    trainer._to_rows = proxy_rows
    trainer._optimizer = torch.optim.SGD(ours.parameters(), lr=0.0)
    _, rows = trainer._with_advantages(tiny_lines(batch))
    recorded = sampled_logprobs(rows)
    trainer._ratios = lambda rows: (recorded + ours[0] - sampled_logprobs(rows)).exp()
    clipped = trainer._update(rows)

    assert torch.equal(recorded, batch.batch["rollout_log_probs"][mask.bool()])
    assert 0.2 < clipped < 1
    # verl divides by the standard deviation of a sample (n - 1), the tiny trainer by that of a population (n).
    factor = ((len(SAMPLES) - 1) / len(SAMPLES)) ** 0.5
    torch.testing.assert_close(verls.grad, ours[0].grad * factor, rtol=1e-3, atol=1e-7)
    assert (verls.grad != 0).float().mean() > 0.3


async def test_verl_logs_equal_probabilities_for_rows_of_the_policy_that_sampled_them(
    batch: Any,
) -> None:
    from verl.utils.debug.metrics import calculate_debug_metrics

    batch.batch["old_log_probs"] = batch.batch["rollout_log_probs"].clone()
    exact = calculate_debug_metrics(batch)
    assert exact["training/rollout_probs_diff_valid"] == 1
    assert exact["training/rollout_probs_diff_max"] == 0
    mask = batch.batch["response_mask"].bool()
    # Halve the probability of one token of the first row.
    first = mask[0].nonzero()[0]
    batch.batch["old_log_probs"][0, first] -= 0.6931
    off = calculate_debug_metrics(batch)["training/rollout_probs_diff_max"]
    half = float(batch.batch["rollout_log_probs"][0, first].exp()) / 2
    assert off == pytest.approx(half, rel=1e-3)
