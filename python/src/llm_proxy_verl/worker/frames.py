"""Frames of the worker protocol, version 2 (docs/worker-protocol.md): JSON objects with a ``type``.

``parse_`` functions validate incoming frames; ``dump_`` functions create the text of outgoing frames.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_proxy.nested_json import parse_json

from ..errors import CallError

PROTOCOL_VERSION = 2
#: Maximum size of a frame, in either direction.
MAX_FRAME_BYTES = 100 * 1024 * 1024
#: Maximum time between the hello and its ack.
HELLO_TIMEOUT_S = 10.0
#: Number of missed heartbeats after which the proxy is considered lost.
MISSED_HEARTBEATS = 3

CLOSE_DONE = 1000
#: The code of RFC 6455 for an unexpected condition: the proxy keeps the worker's requests until it reconnects.
CLOSE_INTERNAL_ERROR = 1011
CLOSE_PROTOCOL_ERROR = 4003

Frame = dict[str, Any]


class BadFrameError(ValueError):
    """The error for an invalid frame. The message never contains content of the frame."""


@dataclass(frozen=True)
class HelloAck:
    """The frame with which a proxy accepts a worker."""

    heartbeat_s: float
    #: Time for which the proxy keeps the requests of a disconnected worker.
    grace_s: float
    #: Maximum number of unacknowledged bytes per request.
    window_bytes: int
    #: Interval at which running requests are reported; ``None``: never.
    alive_s: float | None
    #: The requests that the proxy has kept, with the number of the last frame that it received of each.
    received: Mapping[str, int]


@dataclass(frozen=True)
class CompletionRequest:
    """A request for a completion."""

    request_id: str
    session_id: str
    #: ``chat``, or ``completion`` for the legacy text completions API.
    kind: str
    #: The body of the agent's request, without messages, tools and prompts of token ids.
    body: Mapping[str, Any]
    #: ``None`` if the engine must render the messages or tokenize the text.
    prompt_token_ids: list[int] | None
    #: The names of token data to return in addition to ids and log-probabilities.
    record: tuple[str, ...] = ()
    #: The index in the prompt from which routed experts are requested.
    experts_start: int = 0
    #: The placeholder of an image in ``prompt_token_ids``; ``None`` without images.
    image_token_id: int | None = None
    #: ``data:`` URLs, in the order of the prompt.
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class Completion:
    """The completion of a request."""

    token_ids: Sequence[int]
    #: Natural logarithms, one per id; ``None`` if the engine does not report log-probabilities.
    log_probs: Sequence[float | None] | None
    #: ``stop`` or ``length``.
    finish_reason: str
    #: The text, for requests of kind ``completion``; the proxy decodes the ids of chat requests.
    text: str | None = None
    #: OpenAI's ``logprobs.content`` entries, for an agent that requested them.
    agent_logprobs: Sequence[Mapping[str, Any]] | None = None
    #: The weight versions at the first and the last token; ``None`` if the engine does not report them.
    weight_version_start: str | None = None
    weight_version_end: str | None = None
    cached_tokens: int | None = None
    #: Base64 of safetensors files by the names of token data.
    details: Mapping[str, str] = field(default_factory=dict)


def parse_frame(text: str) -> Frame:
    """Parses a frame's JSON.

    :raises BadFrameError: if the text is not a frame
    """
    try:
        frame = parse_json(text)
    except ValueError:
        raise BadFrameError("not JSON") from None
    except RecursionError:
        raise BadFrameError("nested too deeply") from None
    if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
        raise BadFrameError("without a type")
    return frame


def parse_hello_ack(frame: Frame) -> HelloAck:
    """Parses ``worker_hello_ack``.

    :raises BadFrameError: for another frame, and for version 1, which does not support token ids
    """
    if frame["type"] != "worker_hello_ack":
        raise BadFrameError(f"{frame['type'][:40]} instead of worker_hello_ack")
    if _read_integer(frame, "protocol") < PROTOCOL_VERSION:
        raise BadFrameError("the proxy uses protocol version 1, which does not support token ids")
    received = {
        _read_text(call, "request_id"): _read_integer(call, "received")
        for call in _read_objects(frame, "requests")
    }
    return HelloAck(
        heartbeat_s=_read_integer(frame, "heartbeat_ms") / 1000,
        grace_s=_read_integer(frame, "grace_ms") / 1000,
        window_bytes=_read_integer(frame, "window_bytes"),
        alive_s=_read_integer(frame, "alive_ms") / 1000 if "alive_ms" in frame else None,
        received=received,
    )


def parse_request(frame: Frame) -> CompletionRequest:
    """Parses ``completion_request``.

    :raises BadFrameError: if a field is missing or invalid
    """
    body = frame.get("body")
    kind = frame.get("kind")
    if not isinstance(body, dict):
        raise BadFrameError("body must be an object")
    if kind not in ("chat", "completion"):
        raise BadFrameError("kind must be chat or completion")
    packed = frame.get("prompt_token_ids")
    return CompletionRequest(
        request_id=_read_text(frame, "request_id"),
        session_id=_read_text(frame, "session_id"),
        kind=kind,
        body=body,
        prompt_token_ids=None if packed is None else unpack_token_ids(_read_text(frame, "prompt_token_ids")),
        record=_read_texts(frame, "record") if "record" in frame else (),
        experts_start=_read_integer(frame, "experts_start") if "experts_start" in frame else 0,
        image_token_id=_read_integer(frame, "image_token_id") if "image_token_id" in frame else None,
        images=_read_image_urls(frame) if "image_token_id" in frame else (),
    )


def _read_image_urls(frame: Frame) -> tuple[str, ...]:
    """Returns the URLs of the image parts of all messages, in order."""
    contents = [message.get("content") for message in _read_objects(frame, "messages")]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    images = [
        part.get("image_url") for part in parts if isinstance(part, dict) and part.get("type") == "image_url"
    ]
    urls = [image.get("url") if isinstance(image, dict) else image for image in images]
    if not all(isinstance(url, str) for url in urls):
        raise BadFrameError("an image part must have a url")
    return tuple(str(url) for url in urls)


def pack_token_ids(ids: Sequence[int]) -> str:
    """Encodes ids as base64 of little-endian 32-bit integers."""
    packed = array("i", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode("ascii")


def unpack_token_ids(text: str) -> list[int]:
    """Decodes the result of :func:`pack_token_ids`.

    :raises BadFrameError: if the text is not base64 of 32-bit integers, or an id is negative
    """
    try:
        packed = array("i", base64.b64decode(text, validate=True))
    except ValueError:
        raise BadFrameError("token ids must be 32-bit integers in base64") from None
    if sys.byteorder == "big":
        packed.byteswap()
    if any(token < 0 for token in packed):
        raise BadFrameError("token ids must not be negative")
    return packed.tolist()


def dump_chunk(request: CompletionRequest, completion: Completion, seq: int) -> str:
    """Returns the frame that contains the completion as one chunk."""
    start: Frame = {"engine": "verl", "prompt_token_ids": pack_token_ids(request.prompt_token_ids or [])}
    if completion.weight_version_start is not None:
        start["weight_version"] = completion.weight_version_start
    delta: Frame = {"token_ids": list(completion.token_ids)}
    if completion.log_probs is not None:
        delta["log_probs"] = [_to_wire_log_prob(value) for value in completion.log_probs]
    if completion.text is not None:
        delta["content"] = completion.text
    if completion.agent_logprobs is not None:
        delta["logprobs_content"] = list(completion.agent_logprobs)
    if completion.details:
        delta["details"] = dict(completion.details)
    return _dump(type="completion_chunk", request_id=request.request_id, seq=seq, start=start, deltas=[delta])


def dump_response(request: CompletionRequest, completion: Completion, seq: int) -> str:
    """Returns the last frame of a successful request."""
    prompt_tokens, completion_tokens = len(request.prompt_token_ids or []), len(completion.token_ids)
    usage: Frame = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    if completion.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": completion.cached_tokens}
    return _dump(
        type="completion_response",
        request_id=request.request_id,
        seq=seq,
        finish_reason=completion.finish_reason,
        usage=usage,
        weight_version=completion.weight_version_end,
        error=None,
    )


def dump_alive(request_ids: Sequence[str]) -> str:
    """Returns the frame that reports that requests are running or queued."""
    return _dump(type="calls_alive", request_ids=list(request_ids))


def dump_failure(request_id: str, error: CallError, seq: int) -> str:
    """Returns the last frame of a failed request."""
    fields: Frame = {"code": error.code, "message": error.message, "status": error.status}
    fields["log_message"] = error.log_message[:1000]
    if error.param is not None:
        fields["param"] = error.param
    return _dump(type="completion_response", request_id=request_id, seq=seq, finish_reason=None, error=fields)


def dump_frame(frame: Mapping[str, Any]) -> str:
    """Returns the text of a frame."""
    return json.dumps(frame, separators=(",", ":"), allow_nan=False)


def _dump(**fields: Any) -> str:
    return dump_frame(fields)


def _to_wire_log_prob(value: float | None) -> float | None:
    """Replaces a logprob that JSON cannot represent by ``None``; the proxy marks such a turn as not exact."""
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else None


def _read_text(frame: Mapping[str, Any], field: str) -> str:
    value = frame.get(field)
    if not isinstance(value, str):
        raise BadFrameError(f"{field} must be text")
    return value


def _read_texts(frame: Mapping[str, Any], field: str) -> tuple[str, ...]:
    value = frame.get(field)
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise BadFrameError(f"{field} must be a list of strings")
    return tuple(value)


def _read_integer(frame: Mapping[str, Any], field: str) -> int:
    value = frame.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadFrameError(f"{field} must be an integer")
    return value


def _read_objects(frame: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    value = frame.get(field)
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise BadFrameError(f"{field} must be a list of objects")
    return value
