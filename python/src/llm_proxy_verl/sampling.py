"""Converts an agent's sampling parameters to those of verl's rollout servers. verl passes the parameters to the
engine's own class (``SamplingParams`` of vLLM or TensorRT-LLM, SGLang's dictionary), which rejects unknown names.

So only known names are forwarded; a parameter that would change the completion and cannot be forwarded is rejected, and
the proxy handles those that only affect the response's format (``stream``, ``user``, ``logprobs``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import CallError

#: Names that all of verl's engines share.
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
#: Other names, by the value of ``actor_rollout_ref.rollout.name``.
_RENAMED: Mapping[str, Mapping[str, str]] = {
    "vllm": {"seed": "seed", "min_tokens": "min_tokens"},
    "sglang": {"seed": "sampling_seed", "min_tokens": "min_new_tokens"},
    "trtllm": {"seed": "seed", "min_tokens": "min_tokens"},
}
#: Parameters that verl's trainer always sends, so its servers may rely on them.
_DEFAULTS: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
#: These constrain the completion in ways for which verl has no parameter.
_REFUSED = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "logit_bias",
    "bad_words",
)


def verl_sampling_params(body: Mapping[str, Any], rollout_name: str) -> dict[str, Any]:
    """Returns the ``sampling_params`` of ``LLMServerClient.generate``.

    :param body: the body of an agent's request, with the session's sampling parameters merged in
    :param rollout_name: ``vllm``, ``sglang`` or ``trtllm``
    :raises CallError: ``unsupported``, with the invalid parameter
    """
    _reject_unsupported(body)
    renamed = _RENAMED.get(rollout_name, {})
    params = {name: body[name] for name in _SHARED if body.get(name) is not None}
    params.update((theirs, body[ours]) for ours, theirs in renamed.items() if body.get(ours) is not None)
    limit = body.get("max_completion_tokens")
    limit = body.get("max_tokens") if limit is None else limit
    if limit is not None:
        params["max_tokens"] = limit
    # Log-probabilities are always needed; verl's servers interpret any true value as "of the sampled token".
    return {**_DEFAULTS, **params, "logprobs": True}


def _reject_unsupported(body: Mapping[str, Any]) -> None:
    for name in _REFUSED:
        value = body.get(name)
        if value in (None, {}, []) or (isinstance(value, Mapping) and value.get("type") == "text"):
            continue
        raise CallError("unsupported", f"verl's rollout servers do not take {name}", param=name)
    if body.get("n") not in (None, 1):
        raise CallError("unsupported", "verl's rollout servers give one answer: n must be 1", param="n")
