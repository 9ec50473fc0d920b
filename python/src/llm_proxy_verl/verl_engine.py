"""verl's engines as a worker's engine, through the client that verl gives to its own agent loops.

Every call goes through ``LLMServerClient.generate``, so load balancing, weight synchronisation, abort and resumption
(of ``FullyAsyncLLMServerClient``) stay verl's. verl answers whole.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .details import pack_experts
from .errors import CallError
from .images import one_placeholder_each, open_image
from .sampling import verl_sampling_params
from .worker.frames import Completion, CompletionRequest

logger = logging.getLogger(__name__)

#: OpenAI's word for a token that is next to impossible; JSON has no minus infinity.
_LOWEST = -9999.0


class TokenOutput(Protocol):
    """verl's ``TokenOutput``, as far as each version has it."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None


class LLMClient(Protocol):
    """verl's ``LLMServerClient`` (0.8 and later) or ``AsyncLLMServerManager`` (0.7), as far as it is called here."""

    async def generate(
        self, request_id: Any, *, prompt_ids: list[int], sampling_params: dict[str, Any], **images: Any
    ) -> Any:
        """Samples after ``prompt_ids``; calls with an equal ``request_id`` go to the same server."""


@dataclass(frozen=True)
class RolloutLimits:
    """What verl's configuration says of its rollout (``actor_rollout_ref.rollout``)."""

    #: ``vllm``, ``sglang`` or ``trtllm``.
    name: str
    prompt_length: int
    response_length: int
    #: Tokens of prompt and completion together; ``None``: not configured, the engine knows.
    max_model_len: int | None = None
    #: Ids that end a turn.
    eos_token_ids: frozenset[int] = field(default_factory=frozenset)

    def completion_limit(self, prompt_tokens: int, asked: int | None) -> int:
        """The most tokens that verl's server samples for a call."""
        # The servers' own default; TensorRT-LLM's goes by nothing else.
        default = min(self.response_length, self.prompt_length + self.response_length - prompt_tokens)
        limit = default if asked is None or self.name == "trtllm" else asked
        return limit if self.max_model_len is None else min(limit, self.max_model_len - prompt_tokens)


class Tokenizer(Protocol):
    """A Hugging Face tokenizer, as far as it is called here."""

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = ...) -> Any:
        """The text of the ids."""


class VerlEngine:
    """Serves a worker's calls.

    :param tokenizer: gives text completions (``/v1/completions``) their text, without one they are refused; and tokens
        their names for agents that ask for log-probabilities; proxies compare theirs with it
    """

    def __init__(self, client: LLMClient, limits: RolloutLimits, tokenizer: Tokenizer | None = None) -> None:
        self.client = client
        self._limits = limits
        self._tokenizer = tokenizer
        self._weight_version: str | None = None
        self._warned_of_logprobs = False

    @classmethod
    def of(cls, client: LLMClient, rollout: Any, tokenizer: Any) -> VerlEngine:
        """With the limits of verl's configuration, of its part ``actor_rollout_ref.rollout``."""
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
        """verl's ``global_steps`` of the latest answer."""
        return self._weight_version

    def text_ids(self, text: str) -> list[int] | None:
        """The text's ids by the trainer's tokenizer: prompts of a proxy with another one would mean another text."""
        # One that was written for text completions need not encode.
        encode = getattr(self._tokenizer, "encode", None)
        return None if encode is None else [int(token) for token in encode(text, add_special_tokens=False)]

    async def generate(self, request: CompletionRequest) -> Completion:
        """Samples one completion.

        :raises CallError: with what the agent should get
        """
        prompt_ids = self._prompt_of(request)
        params = verl_sampling_params(request.body, self._limits.name)
        # Servers take what they read out of the dictionary.
        output = await self.client.generate(
            request.session_id,
            prompt_ids=self._ids_for_server(request, prompt_ids),
            sampling_params=dict(params),
            # verl's own agent loops say nothing of images where there are none.
            **({"image_data": [open_image(url) for url in request.images]} if request.images else {}),
        )
        return self._completion(request, output, len(prompt_ids), params.get("max_tokens"))

    def _ids_for_server(self, request: CompletionRequest, prompt_ids: list[int]) -> list[int]:
        """verl's vLLM server folds placeholders itself; its SGLang server passes on what it gets."""
        if request.image_token_id is None or self._limits.name != "sglang":
            return list(prompt_ids)
        return one_placeholder_each(prompt_ids, request.image_token_id)

    def _prompt_of(self, request: CompletionRequest) -> list[int]:
        ids = request.prompt_token_ids
        if ids is None:
            what = "messages" if request.kind == "chat" else "a prompt of text"
            raise CallError(
                "unsupported",
                f"verl's engines take token ids and this call has {what}: start the proxy with --tokenizer MODEL",
            )
        if request.kind == "completion" and self._tokenizer is None:
            raise CallError("unsupported", "this worker has no tokenizer to give a text completion its text")
        limit = self._limits.max_model_len
        if limit is not None and len(ids) >= limit:
            # In vLLM's words, which agents know to compact their history on.
            raise CallError(
                "engine_rejected",
                f"This model's maximum context length is {limit} tokens. However, your prompt contains "
                f"{len(ids)} input tokens.",
            )
        return ids

    def _completion(
        self, request: CompletionRequest, output: TokenOutput, prompt_tokens: int, asked: int | None
    ) -> Completion:
        if output.stop_reason in ("aborted", "abort"):
            # Of a client that does not resume; nothing has reached the agent, so the proxy may try again.
            raise CallError("engine_lost", "verl aborted this completion, as it does to replace weights")
        if output.stop_reason == "error":
            # vLLM's word for a call that broke half-way; what it had sampled until then is no finished sample.
            raise CallError("engine_failed", "verl's engine failed while it sampled this completion")
        token_ids = [int(token) for token in output.token_ids]
        if not token_ids:
            raise CallError("engine_failed", "verl's engine returned no tokens")
        # 0.7.0 has no such field.
        extra: Mapping[str, Any] = getattr(output, "extra_fields", {})
        start, end = _global_steps(extra)
        self._weight_version = self._weight_version if end is None else end
        log_probs = self._log_probs(output.log_probs, len(token_ids))
        return Completion(
            token_ids=token_ids,
            log_probs=log_probs,
            finish_reason=self._finish_reason(output, prompt_tokens, asked),
            text=self._text_of(request, token_ids),
            agent_logprobs=self._agent_logprobs(request, token_ids, log_probs),
            weight_version_start=start,
            weight_version_end=end,
            cached_tokens=extra.get("num_cached_tokens"),
            details=_details(request, output, prompt_tokens + len(token_ids)),
        )

    def _finish_reason(self, output: TokenOutput, prompt_tokens: int, asked: int | None) -> str:
        """``stop`` or ``length``. An end of turn that fell on the limit is one, whatever verl says of it."""
        if output.token_ids[-1] in self._limits.eos_token_ids:
            return "stop"
        # SGLang's own words, of which verl's client that resumes has one too.
        if output.stop_reason in ("stop", "length"):
            return str(output.stop_reason)
        # "completed" stands for both.
        limit = self._limits.completion_limit(prompt_tokens, asked)
        return "length" if len(output.token_ids) >= limit else "stop"

    def _log_probs(self, log_probs: Sequence[float | None] | None, count: int) -> list[float] | None:
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

    def _text_of(self, request: CompletionRequest, token_ids: list[int]) -> str | None:
        if request.kind == "chat" or self._tokenizer is None:
            return None
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def _agent_logprobs(
        self, request: CompletionRequest, token_ids: list[int], log_probs: list[float] | None
    ) -> list[dict[str, Any]] | None:
        """Of the sampled tokens; verl tells of no others."""
        if self._tokenizer is None or log_probs is None or request.body.get("logprobs") is not True:
            return None
        texts = [str(self._tokenizer.decode([token])) for token in token_ids]
        return [
            {"token": text, "logprob": _shown(value), "bytes": list(text.encode()), "top_logprobs": []}
            for text, value in zip(texts, log_probs, strict=True)
        ]


def _details(request: CompletionRequest, output: TokenOutput, tokens: int) -> dict[str, str]:
    experts = getattr(output, "routed_experts", None)
    if experts is None or "routed_experts" not in request.record:
        return {}
    packed = pack_experts(experts, request.experts_start, tokens)
    return {} if packed is None else {"routed_experts": packed}


def _shown(log_prob: float) -> float:
    """As vLLM shows it to agents: a number in any case."""
    return max(log_prob, _LOWEST) if math.isfinite(log_prob) else _LOWEST


def _global_steps(extra_fields: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The steps whose weights sampled the first and the last token, where verl tells."""
    step = extra_fields.get("global_steps")
    first = extra_fields.get("min_global_steps", step)
    last = extra_fields.get("max_global_steps", step)
    return (None if first is None else str(first), None if last is None else str(last))
