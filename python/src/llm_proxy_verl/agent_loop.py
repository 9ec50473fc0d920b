"""The agent loop of verl for agents that run outside of its processes.

A rollout server starts an agent for each sample. The agent sends its LLM requests through the proxy, which records
them; the rows of the session are returned to verl. Supports verl 0.7 to 0.9; docs/verl.md describes its use.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from .config import RemoteAgentConfig
from .details import create_empty_experts
from .images import open_image
from .process import shared_resources
from .reward_groups import Member
from .rows import RolloutResult, Row, parse_result, sort_rows
from .sampling import build_sampling_params
from .values import to_json_value
from .verl_engine import VerlEngine

logger = logging.getLogger(__name__)


@register("remote_agent")
class RemoteAgentLoop(AgentLoopBase):
    """An agent loop that runs an agent for each sample.

    :param remote_agent: fields of ``RemoteAgentConfig``; the environment supplies the others
    :raises ConfigError: if an option or a variable is invalid; the message names it
    """

    def __init__(self, *args: Any, remote_agent: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._options = RemoteAgentConfig.load(remote_agent)
        self._rollout = self.config.actor_rollout_ref.rollout
        replays = getattr(self._rollout, "enable_rollout_routing_replay", False)
        self._record = ("routed_experts",) if replays else ()

    async def run(
        self, sampling_params: dict[str, Any], **kwargs: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Runs the agent of one sample.

        :param kwargs: the columns of the row of the dataset
        :returns: one output, or one for each row of the rollout if verl accepts several; the row with the most trained
            tokens is last. A rollout without trainable tokens has one output with a mask of zeros.
        :raises ProxyApiError: if the rollout server rejects the rollout or stays unavailable; not if the agent fails
        """
        # The sample joins its group before the first await: verl starts all samples of a group before one can end.
        with shared_resources().reward_groups.join(kwargs.get("uid")) as member:
            return await self._run(sampling_params, kwargs, member)

    async def _run(
        self, sampling_params: dict[str, Any], kwargs: dict[str, Any], member: Member
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        options, shared = self._options, shared_resources()
        await shared.offer_engine(
            options,
            self.server_manager,
            lambda: VerlEngine.of(self.server_manager, self._rollout, self.tokenizer),
        )
        accepts_all = self._accepts_all_rows(kwargs)
        sample = to_json_value(kwargs)
        response = await shared.get_rollout_client(options).rollout(
            {
                **options.to_request_fields(),
                "rollout_id": f"{str(sample.get('instance_id', 'sample'))[:200]}-{secrets.token_hex(8)}",
                "sample": sample,
                "sampling_params": to_json_value(sampling_params),
                "record": list(self._record),
                "images": True,
                "prompt_length": self._rollout.prompt_length,
                "response_length": self._rollout.response_length,
                "select": "all" if accepts_all else "longest",
            }
        )
        result = parse_result(response, self._get_filler_id())
        rows = _add_missing_steps(result, await self._add_missing_experts(result), kwargs.get("global_steps"))
        reward = await self._get_reward(result, member)
        outputs = [self._build_output(result, row, reward) for row in rows]
        return outputs if accepts_all else outputs[-1]

    async def _add_missing_experts(self, result: RolloutResult) -> Sequence[Row]:
        """Returns the rows, each with routed experts if the engine reports any.

        verl combines the experts of a batch in one tensor, so either all rows have experts or none. A row without
        reported experts cannot be replayed: it gets zeros, and a loss mask of zeros.
        """
        recorded = [row.routed_experts for row in result.rows if row.routed_experts is not None]
        if not self._record or len(recorded) == len(result.rows):
            return result.rows
        shape = (
            recorded[0].shape[1:]
            if recorded
            else await self._request_expert_shape(str(result.about["session_id"]))
        )
        if shape is None:
            return result.rows
        masked = [
            row if row.routed_experts is not None else _mask_row(row, create_empty_experts(shape))
            for row in result.rows
        ]
        # The last row, which had the most trained tokens, may have been masked.
        return sort_rows(masked)

    async def _request_expert_shape(self, session_id: str) -> tuple[int, ...] | None:
        """Returns the shape of the experts of one token (layers, experts per layer) after sampling one token."""
        filler = self._get_filler_id()
        output = await self.server_manager.generate(
            f"{session_id}-experts",
            prompt_ids=[filler, filler],
            sampling_params=dict(build_sampling_params({"max_tokens": 1}, str(self._rollout.name))),
        )
        experts = getattr(output, "routed_experts", None)
        return None if experts is None else tuple(experts.shape[1:])

    def _accepts_all_rows(self, sample: Mapping[str, Any]) -> bool:
        """Returns whether verl accepts a list of outputs.

        It does if its TransferQueue transfers the results and numbers the rollouts of each sample (``session_id``).
        """
        if self._options.rows != "auto":
            return self._options.rows == "all"
        queue = self.config.get("transfer_queue") or {}
        return bool(queue.get("enable")) and "session_id" in sample

    def _get_filler_id(self) -> int:
        pad, eos = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        return int(pad if pad is not None else eos if eos is not None else 0)

    def _build_output(self, result: RolloutResult, row: Row, reward: float | None) -> AgentLoopOutput:
        """Returns the output for a row. Values of the rollout are copied for each row, because verl modifies them."""
        return AgentLoopOutput(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            response_mask=row.response_mask,
            response_logprobs=row.response_logprobs,
            routed_experts=row.routed_experts,
            # The agent loops of verl use this name.
            multi_modal_data={"images": [open_image(url) for url in row.images]} if row.images else {},
            reward_score=reward,
            num_turns=row.num_turns,
            # verl has no metric for the duration of an agent; it logs this one as the duration of a sample.
            metrics=AgentLoopMetrics(generate_sequences=result.numbers["agent_seconds"]),
            extra_fields=_build_extra_fields(result, row),
        )

    async def _get_reward(self, result: RolloutResult, member: Member) -> float | None:
        """Returns the reward of the rollout, or the mean reward of its group if it has none."""
        return None if self._options.reward == "verl" else await member.reward_or_mean(result.reward)


def _mask_row(row: Row, experts: Any) -> Row:
    if row.trained_tokens > 0:
        logger.warning(
            "a row has no routed experts to replay: its %d tokens are not trained", row.trained_tokens
        )
    length = len(row.response_ids)
    return dataclasses.replace(
        row, response_mask=[0] * length, response_logprobs=[0.0] * length, routed_experts=experts
    )


def _add_missing_steps(result: RolloutResult, rows: Sequence[Row], step: int | None) -> Sequence[Row]:
    """Returns the rows, each with the steps of its weights: those of the current step, if its own are not known.

    verl's trainer (0.9.1, ``trainer/ppo/v1/trainer_base.py``) converts the steps of each row to integers for its
    metrics, and fails without them. The weights of the current step are those that the previous step produced.

    :param step: verl's current step; ``None`` if verl did not pass one with the sample
    """
    if step is None or all(row.has_steps for row in rows):
        return rows
    if not result.numbers["padding"]:
        _warn_of_unknown_steps()
    previous_step = max(step - 1, 0)
    return [
        row
        if row.has_steps
        else dataclasses.replace(row, min_global_steps=previous_step, max_global_steps=previous_step)
        for row in rows
    ]


@functools.cache
def _warn_of_unknown_steps() -> None:
    """Logs, once per process, that the staleness of rows is not known. Padding rows have none."""
    logger.warning(
        "the engine does not report verl's global_steps as the weight version of each token: "
        "verl gets the current step for such rows, so that their staleness is not known"
    )


def _build_extra_fields(result: RolloutResult, row: Row) -> dict[str, Any]:
    numbers = ("tries", "failed", "padding", "inert", "num_rows", "inexact_turns", "left_out_turns")
    metrics = {
        **{name: result.numbers[name] for name in numbers},
        "no_reward": int(result.reward is None),
        "finished": int(row.finished),
        "truncated": int(row.truncated),
        "prompt_truncated": int(row.prompt_truncated),
    }
    fields = {
        **{name: result.about[name] for name in ("trial_id", "session_id", "agent_status", "error")},
        "reward_components": dict(result.about["reward_components"]),
        "turn_rewards": [dict(turn) for turn in row.turn_rewards],
        "finish_reason": row.finish_reason,
        "agent_seconds": result.numbers["agent_seconds"],
    }
    return {
        # One key, so that no name collides with a column of the dataset.
        "remote_agent": {**fields, **metrics},
        # verl logs these values in validation, and requires the same names in all rows of a batch.
        "reward_extra_info": {f"remote_agent/{name}": value for name, value in metrics.items()},
        "min_global_steps": row.min_global_steps,
        "max_global_steps": row.max_global_steps,
        # The agent loops of verl use these two names.
        "turn_scores": [turn["reward"] for turn in row.turn_rewards],
        "tool_rewards": [],
    }
