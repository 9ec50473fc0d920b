"""The engine port of a worker, implemented with the client that verl provides to its agent loops.

All requests use ``LLMServerClient.generate``, so verl performs load balancing, weight synchronisation, aborts and
resumption (``FullyAsyncLLMServerClient``). verl does not stream responses.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .details import pack_experts
from .errors import CallError
from .images import collapse_placeholders, open_image
from .sampling import build_sampling_params
from .worker.frames import Completion, CompletionRequest

logger = logging.getLogger(__name__)

#: OpenAI's value for a token of negligible probability; JSON has no minus infinity.
_LOWEST = -9999.0


class TokenOutput(Protocol):
    """The fields of verl's ``TokenOutput`` that all supported versions have."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None


class LLMClient(Protocol):
    """The method of verl's ``LLMServerClient`` (0.8 and later) or ``AsyncLLMServerManager`` (0.7) that is used."""

    async def generate(
        self, request_id: Any, *, prompt_ids: list[int], sampling_params: dict[str, Any], **images: Any
    ) -> Any:
        """Samples a completion of ``prompt_ids``; requests with equal ``request_id`` are sent to the same server."""


@dataclass(frozen=True)
class RolloutLimits:
    """Limits of ``actor_rollout_ref.rollout`` in verl's configuration."""

    #: ``vllm``, ``sglang`` or ``trtllm``.
    name: str
    prompt_length: int
    response_length: int
    #: Maximum number of tokens of prompt and completion; ``None``: not configured, the default of the engine applies.
    max_model_len: int | None = None
    #: Ids of tokens that end a turn.
    eos_token_ids: frozenset[int] = field(default_factory=frozenset)

    def get_completion_limit(self, prompt_tokens: int, requested: int | None) -> int:
        """Returns the maximum number of tokens that verl's server samples for a request."""
        # The default of verl's servers; the one of TensorRT-LLM ignores the request's limit.
        default = min(self.response_length, self.prompt_length + self.response_length - prompt_tokens)
        limit = default if requested is None or self.name == "trtllm" else requested
        return limit if self.max_model_len is None else min(limit, self.max_model_len - prompt_tokens)


class Tokenizer(Protocol):
    """The required method of a Hugging Face tokenizer."""

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = ...) -> Any:
        """Returns the text of the ids."""


class VerlEngine:
    """An engine that serves the requests of a worker with verl's engines.

    :param tokenizer: decodes text completions (``/v1/completions``), which are rejected without it, and the tokens of
        log-probabilities for agents; proxies compare it with their own tokenizer
    """

    def __init__(self, client: LLMClient, limits: RolloutLimits, tokenizer: Tokenizer | None = None) -> None:
        self.client = client
        self._limits = limits
        self._tokenizer = tokenizer
        self._weight_version: str | None = None
        self._warned_of_logprobs = False

    @classmethod
    def of(cls, client: LLMClient, rollout: Any, tokenizer: Any) -> VerlEngine:
        """Creates an engine with the limits of ``actor_rollout_ref.rollout`` in verl's configuration."""
        eos = tokenizer.eos_token_id
        limits = RolloutLimits(
            name=str(rollout.name),
            prompt_length=rollout.prompt_length,
            response_length=rollout.response_length,
            max_model_len=getattr(rollout, "max_model_len", None),
            eos_token_ids=frozenset() if eos is None else frozenset({eos}),
        )
        return cls(client, limits, tokenizer)

    @property
    def weight_version(self) -> str | None:
        """The ``global_steps`` of the latest response."""
        return self._weight_version

    def text_ids(self, text: str) -> list[int] | None:
        """Returns the ids of a text, which proxies compare with those of their own tokenizer."""
        # A tokenizer that is used only to decode text completions may lack this method.
        encode = getattr(self._tokenizer, "encode", None)
        return None if encode is None else [int(token) for token in encode(text, add_special_tokens=False)]

    async def generate(self, request: CompletionRequest) -> Completion:
        """Samples one completion.

        :raises CallError: with the error for the agent
        """
        prompt_ids = self._get_prompt(request)
        params = build_sampling_params(request.body, self._limits.name)
        # The servers modify the dictionary.
        output = await self.client.generate(
            request.session_id,
            prompt_ids=self._get_server_ids(request, prompt_ids),
            sampling_params=dict(params),
            # As in verl's agent loops, the argument is omitted without images.
            **({"image_data": [open_image(url) for url in request.images]} if request.images else {}),
        )
        return self._build_completion(request, output, len(prompt_ids), params.get("max_tokens"))

    def _get_server_ids(self, request: CompletionRequest, prompt_ids: list[int]) -> list[int]:
        """Returns the prompt for the server.

        verl's vLLM server merges the placeholders of an image; its SGLang server forwards them to SGLang unchanged.
        """
        if request.image_token_id is None or self._limits.name != "sglang":
            return list(prompt_ids)
        return collapse_placeholders(prompt_ids, request.image_token_id)

    def _get_prompt(self, request: CompletionRequest) -> list[int]:
        ids = request.prompt_token_ids
        if ids is None:
            content = "messages" if request.kind == "chat" else "a text prompt"
            raise CallError(
                "unsupported",
                f"verl's engines require token ids, but this request has {content}: "
                "start the proxy with --tokenizer MODEL",
            )
        if request.kind == "completion" and self._tokenizer is None:
            raise CallError("unsupported", "this worker has no tokenizer to decode a text completion")
        limit = self._limits.max_model_len
        if limit is not None and len(ids) >= limit:
            # The message of vLLM, which agents recognize in order to compact their history.
            raise CallError(
                "engine_rejected",
                f"This model's maximum context length is {limit} tokens. However, your prompt contains "
                f"{len(ids)} input tokens.",
            )
        return ids

    def _build_completion(
        self, request: CompletionRequest, output: TokenOutput, prompt_tokens: int, requested: int | None
    ) -> Completion:
        if output.stop_reason in ("aborted", "abort"):
            # The verl client does not resume aborted requests. The agent has received no token, so the proxy may retry.
            raise CallError("engine_lost", "verl aborted this completion, probably to update weights")
        if output.stop_reason == "error":
            # vLLM reports this for a request that failed after some tokens, which are not a complete sample.
            raise CallError("engine_failed", "verl's engine failed while it sampled this completion")
        token_ids = [int(token) for token in output.token_ids]
        if not token_ids:
            raise CallError("engine_failed", "verl's engine returned no tokens")
        # verl 0.7.0 does not have this field.
        extra: Mapping[str, Any] = getattr(output, "extra_fields", {})
        start, end = _read_global_steps(extra)
        self._weight_version = self._weight_version if end is None else end
        log_probs = self._convert_log_probs(output.log_probs, len(token_ids))
        return Completion(
            token_ids=token_ids,
            log_probs=log_probs,
            finish_reason=self._get_finish_reason(output, prompt_tokens, requested),
            text=self._decode_text(request, token_ids),
            agent_logprobs=self._build_agent_logprobs(request, token_ids, log_probs),
            weight_version_start=start,
            weight_version_end=end,
            cached_tokens=extra.get("num_cached_tokens"),
            details=_build_details(request, output, prompt_tokens + len(token_ids)),
        )

    def _get_finish_reason(self, output: TokenOutput, prompt_tokens: int, requested: int | None) -> str:
        """Returns ``stop`` or ``length``: ``stop`` if an end-of-turn token is last, even at the limit of tokens."""
        if output.token_ids[-1] in self._limits.eos_token_ids:
            return "stop"
        # SGLang reports either of these reasons; the resuming client of verl reports ``length``.
        if output.stop_reason in ("stop", "length"):
            return str(output.stop_reason)
        # The other value, "completed", means either of them.
        limit = self._limits.get_completion_limit(prompt_tokens, requested)
        return "length" if len(output.token_ids) >= limit else "stop"

    def _convert_log_probs(self, log_probs: Sequence[float | None] | None, count: int) -> list[float] | None:
        if log_probs is None:
            if not self._warned_of_logprobs:
                logger.warning("verl's engine returns no log-probabilities: turns are recorded as not exact")
                self._warned_of_logprobs = True
            return None
        if len(log_probs) != count:
            raise CallError(
                "engine_failed",
                f"verl's engine returned {len(log_probs)} log-probabilities for {count} tokens",
            )
        return [math.nan if value is None else float(value) for value in log_probs]

    def _decode_text(self, request: CompletionRequest, token_ids: list[int]) -> str | None:
        if request.kind == "chat" or self._tokenizer is None:
            return None
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def _build_agent_logprobs(
        self, request: CompletionRequest, token_ids: list[int], log_probs: list[float] | None
    ) -> list[dict[str, Any]] | None:
        """Returns the log-probabilities of the sampled tokens in OpenAI's format; verl does not report alternatives."""
        if self._tokenizer is None or log_probs is None or not _requests_log_probs(request.body):
            return None
        texts = [str(self._tokenizer.decode([token])) for token in token_ids]
        return [
            {
                "token": text,
                "logprob": _to_finite_log_prob(value),
                "bytes": list(text.encode()),
                "top_logprobs": [],
            }
            for text, value in zip(texts, log_probs, strict=True)
        ]


def _requests_log_probs(body: Mapping[str, Any]) -> bool:
    """Returns whether an agent requested log-probabilities: ``true`` in a chat, or a number in a completion.

    The number is that of the alternatives, so 0 requests those of the sampled tokens.
    """
    value = body.get("logprobs")
    return value is not False and isinstance(value, int)


def _build_details(request: CompletionRequest, output: TokenOutput, tokens: int) -> dict[str, str]:
    experts = getattr(output, "routed_experts", None)
    if experts is None or "routed_experts" not in request.record:
        return {}
    packed = pack_experts(experts, request.experts_start, tokens)
    return {} if packed is None else {"routed_experts": packed}


def _to_finite_log_prob(log_prob: float) -> float:
    """Returns a finite log-probability for an agent, with vLLM's substitute for others."""
    return max(log_prob, _LOWEST) if math.isfinite(log_prob) else _LOWEST


def _read_global_steps(extra_fields: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Returns the steps whose weights sampled the first and the last token; ``None`` if verl does not report them."""
    step = extra_fields.get("global_steps")
    first = extra_fields.get("min_global_steps", step)
    last = extra_fields.get("max_global_steps", step)
    return (None if first is None else str(first), None if last is None else str(last))
