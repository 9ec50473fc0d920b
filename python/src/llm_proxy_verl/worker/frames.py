"""Frames of ``/ws/worker``, protocol version 2, as docs/worker-protocol.md has them: JSON text with a ``type``.

What comes in is checked and becomes a value of its own; what goes out is made by the functions at the end.
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

from ..errors import CallError

PROTOCOL_VERSION = 2
#: A frame, in either direction, may be this large.
MAX_FRAME_BYTES = 100 * 1024 * 1024
#: A worker waits this long for the answer to its hello.
HELLO_TIMEOUT_S = 10.0
#: Heartbeats that the proxy may miss before it is taken for gone.
MISSED_HEARTBEATS = 3

CLOSE_DONE = 1000
CLOSE_PROTOCOL_ERROR = 4003

Frame = dict[str, Any]


class BadFrameError(ValueError):
    """A frame is not one that a proxy sends; the message says what is wrong with it, never what stands in it."""


@dataclass(frozen=True)
class HelloAck:
    """The proxy has taken the worker on."""

    heartbeat_s: float
    #: How long the proxy keeps calls for a worker whose connection has dropped.
    grace_s: float
    #: A call's bytes that may be sent and not be acknowledged.
    window_bytes: int
    #: How often to say of the calls that run that they do; ``None``: the proxy does not ask for it.
    alive_s: float | None
    #: Calls that the proxy still wants, with the last frame that it has of each.
    received: Mapping[str, int]


@dataclass(frozen=True)
class CompletionRequest:
    """One call."""

    request_id: str
    session_id: str
    #: ``chat``, or ``completion`` for the older text completions.
    kind: str
    #: The agent's body, without messages, tools and a prompt of token ids.
    body: Mapping[str, Any]
    #: ``None`` where the engine is meant to render messages or to tokenize text itself.
    prompt_token_ids: list[int] | None
    #: What the proxy records beyond ids and log-probabilities, by its names.
    record: tuple[str, ...] = ()
    #: The place of the prompt from which routed experts are wanted.
    experts_start: int = 0
    #: The id that stands for an image in ``prompt_token_ids``; ``None``: there are no images.
    image_token_id: int | None = None
    #: ``data:`` URLs, in the order of the prompt.
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class Completion:
    """What an engine sampled for one call, whole."""

    token_ids: Sequence[int]
    #: Natural logarithms, one per id; ``None`` where the engine does not tell.
    log_probs: Sequence[float | None] | None
    #: ``stop`` or ``length``.
    finish_reason: str
    #: The text of a call of kind ``completion``; for chat calls the proxy decodes.
    text: str | None = None
    #: OpenAI's ``logprobs.content`` entries, for an agent that asked for them.
    agent_logprobs: Sequence[Mapping[str, Any]] | None = None
    #: The weights at the beginning and at the end, in the engine's own word.
    weight_version_start: str | None = None
    weight_version_end: str | None = None
    cached_tokens: int | None = None
    #: Base64 of safetensors files, by the names of details.
    details: Mapping[str, str] = field(default_factory=dict)


def parse_frame(text: str) -> Frame:
    """Reads a frame's JSON.

    :raises BadFrameError: for what is no frame at all
    """
    try:
        frame = json.loads(text)
    except ValueError:
        raise BadFrameError("not JSON") from None
    if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
        raise BadFrameError("without a type")
    return frame


def parse_hello_ack(frame: Frame) -> HelloAck:
    """Reads ``worker_hello_ack``.

    :raises BadFrameError: for another frame, and for version 1, in which the proxy cannot send token ids
    """
    if frame["type"] != "worker_hello_ack":
        raise BadFrameError(f"a {frame['type'][:40]} where worker_hello_ack should be")
    if _integer(frame, "protocol") < PROTOCOL_VERSION:
        raise BadFrameError("the proxy speaks protocol version 1, which has no token ids")
    received = {_text(call, "request_id"): _integer(call, "received") for call in _objects(frame, "requests")}
    return HelloAck(
        heartbeat_s=_integer(frame, "heartbeat_ms") / 1000,
        grace_s=_integer(frame, "grace_ms") / 1000,
        window_bytes=_integer(frame, "window_bytes"),
        alive_s=_integer(frame, "alive_ms") / 1000 if "alive_ms" in frame else None,
        received=received,
    )


def parse_request(frame: Frame) -> CompletionRequest:
    """Reads ``completion_request``.

    :raises BadFrameError: for one that breaks its schema
    """
    body = frame.get("body")
    kind = frame.get("kind")
    if not isinstance(body, dict):
        raise BadFrameError("body must be an object")
    if kind not in ("chat", "completion"):
        raise BadFrameError("kind must be chat or completion")
    packed = frame.get("prompt_token_ids")
    return CompletionRequest(
        request_id=_text(frame, "request_id"),
        session_id=_text(frame, "session_id"),
        kind=kind,
        body=body,
        prompt_token_ids=None if packed is None else unpack_token_ids(_text(frame, "prompt_token_ids")),
        record=_texts(frame, "record") if "record" in frame else (),
        experts_start=_integer(frame, "experts_start") if "experts_start" in frame else 0,
        image_token_id=_integer(frame, "image_token_id") if "image_token_id" in frame else None,
        images=_image_urls(frame) if "image_token_id" in frame else (),
    )


def _image_urls(frame: Frame) -> tuple[str, ...]:
    """The URLs of the messages' image parts."""
    contents = [message.get("content") for message in _objects(frame, "messages")]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    images = [
        part.get("image_url") for part in parts if isinstance(part, dict) and part.get("type") == "image_url"
    ]
    urls = [image.get("url") if isinstance(image, dict) else image for image in images]
    if not all(isinstance(url, str) for url in urls):
        raise BadFrameError("an image without a url")
    return tuple(str(url) for url in urls)


def pack_token_ids(ids: Sequence[int]) -> str:
    """Base64 of little-endian 32-bit integers."""
    packed = array("i", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode("ascii")


def unpack_token_ids(text: str) -> list[int]:
    """Reads what :func:`pack_token_ids` makes.

    :raises BadFrameError: when the text does not hold whole ids, or one is negative
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


def chunk_frame(request: CompletionRequest, completion: Completion, seq: int) -> str:
    """The whole completion as one chunk."""
    start: Frame = {"engine": "verl", "prompt_token_ids": pack_token_ids(request.prompt_token_ids or [])}
    if completion.weight_version_start is not None:
        start["weight_version"] = completion.weight_version_start
    delta: Frame = {"token_ids": list(completion.token_ids)}
    if completion.log_probs is not None:
        delta["log_probs"] = [_logprob_on_wire(value) for value in completion.log_probs]
    if completion.text is not None:
        delta["content"] = completion.text
    if completion.agent_logprobs is not None:
        delta["logprobs_content"] = list(completion.agent_logprobs)
    if completion.details:
        delta["details"] = dict(completion.details)
    return _dump(type="completion_chunk", request_id=request.request_id, seq=seq, start=start, deltas=[delta])


def response_frame(request: CompletionRequest, completion: Completion, seq: int) -> str:
    """The end of a call that succeeded."""
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


def alive_frame(request_ids: Sequence[str]) -> str:
    """These calls have an engine at work, or wait for one."""
    return _dump(type="calls_alive", request_ids=list(request_ids))


def failure_frame(request_id: str, error: CallError, seq: int) -> str:
    """The end of a call that failed."""
    on_wire: Frame = {"code": error.code, "message": error.message, "status": error.status}
    on_wire["log_message"] = error.log_message[:1000]
    if error.param is not None:
        on_wire["param"] = error.param
    return _dump(
        type="completion_response", request_id=request_id, seq=seq, finish_reason=None, error=on_wire
    )


def dump_frame(frame: Mapping[str, Any]) -> str:
    """A frame's text."""
    return json.dumps(frame, separators=(",", ":"), allow_nan=False)


def _dump(**fields: Any) -> str:
    return dump_frame(fields)


def _logprob_on_wire(value: float | None) -> float | None:
    """JSON has no number for what is not finite; null says that the turn is not exact."""
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else None


def _text(frame: Mapping[str, Any], field: str) -> str:
    value = frame.get(field)
    if not isinstance(value, str):
        raise BadFrameError(f"{field} must be text")
    return value


def _texts(frame: Mapping[str, Any], field: str) -> tuple[str, ...]:
    value = frame.get(field)
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise BadFrameError(f"{field} must be a list of texts")
    return tuple(value)


def _integer(frame: Mapping[str, Any], field: str) -> int:
    value = frame.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadFrameError(f"{field} must be an integer")
    return value


def _objects(frame: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    value = frame.get(field)
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise BadFrameError(f"{field} must be a list of objects")
    return value
