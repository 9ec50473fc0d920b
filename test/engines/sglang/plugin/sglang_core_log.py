"""Logs the requests and samples of SGLang's scheduler, before detokenizing and parsing: the lines
of `../../vllm/plugin/core_log.py`, with vLLM's names of sampling parameters.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
SAME = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def install_log(manager: Any) -> None:
    file = Path(os.environ["CORE_LOG"]).open("a", buffering=1)  # noqa: SIM115
    dispatch, handle = manager._dispatch_to_scheduler, manager._handle_batch_output

    def write(line: dict[str, Any]) -> None:
        file.write(json.dumps(line, default=str) + "\n")

    def logged_request(self: Any, request: Any) -> Any:
        if hasattr(request, "sampling_params") and hasattr(request, "input_ids"):
            prompt = [] if request.input_ids is None else [int(token) for token in request.input_ids]
            lora = getattr(request, "lora_id", None)
            write({"asked": request.rid, "prompt": prompt, "params": get_params(request.sampling_params), "lora": lora})
        return dispatch(self, request)

    async def logged_outputs(self: Any, batch: Any) -> Any:
        if getattr(batch, "output_ids", None) is not None:
            for at, request in enumerate(batch.rids):
                write(create_line(self, batch, at, request))
        return await handle(self, batch)

    manager._dispatch_to_scheduler, manager._handle_batch_output = logged_request, logged_outputs


def create_line(manager: Any, batch: Any, at: int, request: str) -> dict[str, Any]:
    ids = [int(token) for token in batch.output_ids[at]]
    finish = batch.finished_reasons[at]
    return {
        "sampled": request,
        "ids": ids,
        "logprobs": get_logprobs(ids, batch, at),
        "heard": request in manager.rid_to_state,
        "weights": manager.config_value("weight_version"),
        "finish": None if finish is None else finish.get("type"),
        "stop": None if finish is None else finish.get("matched"),
        "at": time.time(),
    }


def get_logprobs(ids: list[int], batch: Any, at: int) -> list[float] | None:
    values = getattr(batch, "output_token_logprobs_val", None)
    # A request without logprobs, such as a health check, has an empty list if another one of the batch has logprobs.
    if not values or not values[at]:
        return None
    reported = [int(token) for token in batch.output_token_logprobs_idx[at]]
    if reported[-len(ids) :] != ids and ids:
        raise ValueError(f"SGLang sampled {ids} and reports logprobs of {reported}")
    return [float(value) for value in values[at]][-len(ids) :] if ids else []


def get_params(params: Any) -> dict[str, Any]:
    values = {name: getattr(params, own, None) for own, name in NAMES.items()}
    values |= {name: getattr(params, name, None) for name in SAME}
    # `SamplingParams` has overwritten its input: a missing limit becomes this number, and temperature 0 a top_k of 1.
    if values["top_k"] == 1 << 30:
        values["top_k"] = -1
    if values["top_k"] == 1:
        values["temperature"] = 0
    return values
