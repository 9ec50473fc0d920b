"""Converts the sampling parameters of an agent to those of verl's rollout servers.

verl passes the parameters to the class of the engine (``SamplingParams`` of vLLM or TensorRT-LLM, the dictionary of
SGLang), which rejects unknown names. Therefore only known names are forwarded. Parameters that would change the
completion but cannot be forwarded are rejected. The proxy handles parameters that affect only the format of the
response (``stream``, ``user``, ``logprobs``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import CallError

#: Parameters that have the same name in all engines of verl.
_SHARED = (
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_p",
)
#: Parameters of other names, by the value of ``actor_rollout_ref.rollout.name``.
_RENAMED: Mapping[str, Mapping[str, str]] = {
    "vllm": {"seed": "seed", "min_tokens": "min_tokens"},
    "sglang": {"seed": "sampling_seed", "min_tokens": "min_new_tokens"},
    "trtllm": {"seed": "seed", "min_tokens": "min_tokens"},
}
#: Parameters that verl's trainer always sends, so its servers may require them.
_DEFAULTS: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
#: Parameters of vLLM and SGLang that change the completion and that verl does not support.
_UNSUPPORTED = frozenset(
    (
        "response_format",
        "structured_outputs",
        "json_schema",
        "structural_tag",
        "regex",
        "ebnf",
        "stop_regex",
        "logit_bias",
        "bad_words",
        "allowed_token_ids",
        "thinking_token_budget",
        "repetition_detection",
        "use_beam_search",
        "watermarking",
        "custom_params",
        "custom_logit_processor",
        "logits_processors",
        "vllm_xargs",
    )
)
#: The prefix of vLLM's former names for constraints, such as ``guided_json``.
_UNSUPPORTED_PREFIX = "guided_"


def build_sampling_params(body: Mapping[str, Any], rollout_name: str) -> dict[str, Any]:
    """Returns the ``sampling_params`` of ``LLMServerClient.generate``.

    :param body: the body of an agent's request, with the session's sampling parameters merged in
    :param rollout_name: ``vllm``, ``sglang`` or ``trtllm``
    :raises CallError: ``unsupported``, with the name of the parameter
    """
    _reject_unsupported(body)
    renamed = _RENAMED.get(rollout_name, {})
    params = {name: body[name] for name in _SHARED if body.get(name) is not None}
    params.update((theirs, body[ours]) for ours, theirs in renamed.items() if body.get(ours) is not None)
    limit = body.get("max_completion_tokens")
    limit = body.get("max_tokens") if limit is None else limit
    if limit is not None:
        params["max_tokens"] = limit
    # The proxy always requires log-probabilities; for verl's servers, True means those of the sampled token.
    return {**_DEFAULTS, **params, "logprobs": True}


def _reject_unsupported(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        if name not in _UNSUPPORTED and not name.startswith(_UNSUPPORTED_PREFIX):
            continue
        if _has_no_effect(name, value):
            continue
        raise CallError("unsupported", f"verl's rollout servers do not support {name}", param=name)
    if body.get("n") not in (None, 1):
        raise CallError("unsupported", "verl's rollout servers return one completion: n must be 1", param="n")


def _has_no_effect(name: str, value: Any) -> bool:
    """Returns whether a parameter is unset. 0 is a value: a budget of no tokens."""
    if name == "response_format" and isinstance(value, Mapping) and value.get("type") == "text":
        return True
    return value is False or value in (None, {}, [], "")
