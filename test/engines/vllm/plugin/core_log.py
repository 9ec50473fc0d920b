"""A general plugin of vLLM: logs the requests and samples of the engine's core, before detokenizing and parsing, as JSON
lines to the file $CORE_LOG:

{"asked": id, "prompt": ids, "params": SamplingParams, "lora": name or null}
{"sampled": id, "ids", "logprobs": one per id, or null, "heard", "weights": version or null, "finish", "stop",
"at": seconds since the epoch}

`heard` is false for ids that the core sampled after a stop string or an abort: no client receives them. The plugin runs
in the API server, which sends requests to the core and receives its outputs (`OutputProcessor`).

While a file $CORE_LOG.experts exists, the plugin adds routed experts to outputs, as a GPU's core does: a row for each
position that a step computed. vLLM's CPU build has none, so the plugin derives them from the position.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

MAX_WAIT_MS = 50


def register() -> None:
    """Called by vLLM in each of its processes, perhaps more than once."""
    path = os.environ.get("CORE_LOG")
    if not path:
        return
    from vllm.v1.engine.output_processor import OutputProcessor

    if hasattr(OutputProcessor, "logs_core"):
        return
    stop_spinning()
    OutputProcessor.logs_core = True
    log = Path(path).open("a", buffering=1)  # noqa: SIM115

    def write(line: dict[str, Any]) -> None:
        log.write(json.dumps(line, default=to_json) + "\n")

    experts = Path(f"{path}.experts")
    # By request: the first position whose experts it requests, the length of its prompt, the number of sampled ids.
    positions: dict[str, tuple[int, int, int]] = {}

    def add_experts(output: Any) -> None:
        if output.request_id not in positions:
            return
        start, prompt, sampled = positions[output.request_id]
        positions[output.request_id] = (start, prompt, sampled + len(output.new_token_ids))
        if experts.exists():
            first = start if sampled == 0 else prompt + sampled - 1
            output.routed_experts = make_experts(first, prompt + sampled)

    add_request, process_outputs = OutputProcessor.add_request, OutputProcessor.process_outputs

    def logged_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        prompt = list(request.prompt_token_ids or [])
        start = getattr(request.sampling_params, "routed_experts_prompt_start", None) or 0
        positions[request.request_id] = (start, len(prompt), 0)
        write(
            {
                "asked": request.request_id,
                "prompt": prompt,
                "params": get_fields(request.sampling_params),
                "lora": getattr(request.lora_request, "lora_name", None),
            }
        )
        return add_request(self, request, *args, **kwargs)

    def logged_outputs(self: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        for output in outputs:
            add_experts(output)
            ids = [int(token) for token in output.new_token_ids]
            write(
                {
                    "sampled": output.request_id,
                    "ids": ids,
                    "logprobs": get_logprobs(ids, output.new_logprobs),
                    "heard": output.request_id in self.request_states,
                    "weights": kwargs.get("weight_version"),
                    "finish": None if output.finish_reason is None else str(output.finish_reason),
                    "stop": output.stop_reason,
                    "at": time.time(),
                }
            )
        return process_outputs(self, outputs, *args, **kwargs)

    OutputProcessor.add_request, OutputProcessor.process_outputs = logged_request, logged_outputs


def make_experts(first: int, end: int) -> Any:
    """Returns the experts of positions from `first` to `end`, in three layers of two: `uint8[positions, 3, 2]`."""
    import numpy as np

    position, layer, rank = np.ogrid[first:end, 0:3, 0:2]
    return ((position * 7 + layer * 3 + rank) % 256).astype(np.uint8)


def get_logprobs(ids: list[int], logprobs: Any) -> list[float] | None:
    """Returns the logprobs of the sampled ids, which vLLM has at the head of each row of its table."""
    if logprobs is None:
        return None
    heads = [int(row[0]) for row in logprobs.logprob_token_ids][: len(ids)]
    if heads != ids:
        raise ValueError(f"vLLM sampled {ids} and reports logprobs of {heads}")
    return [float(row[0]) for row in logprobs.logprobs][: len(ids)]


def get_fields(params: Any) -> dict[str, Any] | None:
    """Returns the fields of a msgspec struct."""
    return None if params is None else {name: getattr(params, name) for name in params.__struct_fields__}


def to_json(value: Any) -> Any:
    """Converts types that JSON lacks."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else str(value)


def stop_spinning() -> None:
    """Makes the core and its worker sleep while they wait for each other. By default they poll for a second, which takes
    the cores of a small machine.
    """
    from vllm.distributed.device_communicators import shm_broadcast

    condition = getattr(shm_broadcast, "SpinCondition", None)
    if condition is None:
        return
    wait = condition.wait

    def short_wait(self: Any, timeout_ms: int | None = None) -> None:
        self.busy_loop_s = 0
        # A notification is dropped if the subscription is not established yet.
        wait(self, timeout_ms=MAX_WAIT_MS if timeout_ms is None else min(timeout_ms, MAX_WAIT_MS))

    condition.wait = short_wait
