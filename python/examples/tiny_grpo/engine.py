"""An engine in vLLM's wire format (``vllm/entrypoints/openai``): token-id prompts, ids, logprobs, streams, weights.

Started as ``python -m tiny_grpo.engine --weights FILE``; the first line of its output is its URL.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TextIO

import torch
from aiohttp import web

from . import model
from .batching import Batch, Sampled
from .text import decode, encode, parse_message, render

MODEL = "tiny"
BATCH = web.AppKey("batch", Batch)
PLACEMENT = web.AppKey("placement", model.Placement)
LOG: web.AppKey[TextIO | None] = web.AppKey("log")


async def completions(request: web.Request) -> web.StreamResponse:
    """``POST /v1/completions``: the request of a proxy in token mode."""
    body, batch = await request.json(), request.app[BATCH]
    prompt = body["prompt"] if isinstance(body["prompt"], list) else encode(body["prompt"])
    if error := _too_long(prompt, batch):
        return error
    parts = _generate(request, prompt, body, body.get("max_tokens") or 16)
    head = _head("cmpl", "text_completion")
    if not body.get("stream"):
        sampled = [token async for part in parts for token in part]
        choice = _choice(sampled) | {"prompt_token_ids": prompt}
        return web.json_response(head | {"choices": [choice], "usage": _usage(prompt, len(sampled))})
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    count = 0
    async for part in parts:
        choice = _choice(part) | {"prompt_token_ids": None if count else prompt}
        count += len(part)
        await _event(response, head | {"choices": [choice], "usage": None})
    if (body.get("stream_options") or {}).get("include_usage"):
        await _event(response, head | {"choices": [], "usage": _usage(prompt, count)})
    await response.write(b"data: [DONE]\n\n")
    return response


async def chat(request: web.Request) -> web.StreamResponse:
    """``POST /v1/chat/completions``: the engine renders the whole conversation in each request."""
    body, batch = await request.json(), request.app[BATCH]
    prompt = encode(render(body["messages"], body.get("tools"), open_turn=True))
    if error := _too_long(prompt, batch):
        return error
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or batch.context
    sampled = [token async for part in _generate(request, prompt, body, limit) for token in part]
    ids = [one.token for one in sampled]
    message = parse_message(decode(ids))
    reason = "tool_calls" if message.get("tool_calls") else sampled[-1].finish_reason
    content = [{"token": decode([one.token]), "logprob": one.logprob, "top_logprobs": []} for one in sampled]
    choice = {"index": 0, "finish_reason": reason, "logprobs": {"content": content}, "token_ids": ids}
    completion = _head("chatcmpl", "chat.completion") | {
        "prompt_token_ids": prompt,
        "usage": _usage(prompt, len(sampled)),
    }
    if not body.get("stream"):
        return web.json_response(completion | {"choices": [choice | {"message": message}]})
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for number, call in enumerate(message.get("tool_calls", [])):
        call["index"] = number
    await _event(
        response, completion | {"object": "chat.completion.chunk", "choices": [choice | {"delta": message}]}
    )
    await response.write(b"data: [DONE]\n\n")
    return response


async def update_weights(request: web.Request) -> web.Response:
    """``POST /update_weights`` ``{"path", "weight_version"}``: the end of a trainer's weight transfer."""
    body = await request.json()
    policy = model.load(Path(body["path"]), request.app[PLACEMENT])
    request.app[BATCH].replace_weights(policy, str(body["weight_version"]))
    return web.json_response({})


async def weight_info(request: web.Request) -> web.Response:
    """``GET /weight_info``: the version that the worker reads."""
    return web.json_response({"weight_version": request.app[BATCH].weight_version})


async def models(request: web.Request) -> web.Response:
    """``GET /v1/models``."""
    entry = {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": request.app[BATCH].context}
    return web.json_response({"object": "list", "data": [entry]})


async def health(_: web.Request) -> web.Response:
    """``GET /health``."""
    return web.Response()


async def _generate(
    request: web.Request, prompt: list[int], body: dict[str, Any], max_tokens: int
) -> AsyncIterator[list[Sampled]]:
    """Yields the parts of a response, and logs the whole of it where ``--log`` asks for that."""
    temperature, top_p = body.get("temperature"), body.get("top_p")
    batch, log = request.app[BATCH], request.app[LOG]
    sampled: list[Sampled] = []
    async for part in batch.generate(
        prompt,
        max_tokens,
        1.0 if temperature is None else temperature,
        1.0 if top_p is None else top_p,
        bool(body.get("ignore_eos")),
    ):
        sampled += part
        yield part
    if log is not None:
        ids, logprobs = [one.token for one in sampled], [one.logprob for one in sampled]
        log.write(json.dumps({"prompt": prompt, "ids": ids, "logprobs": logprobs}) + "\n")
        log.flush()


def _too_long(prompt: list[int], batch: Batch) -> web.Response | None:
    if len(prompt) < batch.context:
        return None
    what = f"This model's maximum context length is {batch.context} tokens. The prompt has {len(prompt)}."
    return web.json_response({"error": {"message": what, "type": "BadRequestError", "code": 400}}, status=400)


def _head(prefix: str, kind: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": MODEL}


def _choice(sampled: list[Sampled]) -> dict[str, Any]:
    ids = [one.token for one in sampled]
    return {
        "index": 0,
        "text": decode(ids).removesuffix("<|im_end|>"),
        "token_ids": ids,
        "logprobs": {
            "token_logprobs": [one.logprob for one in sampled],
            "tokens": [decode([one]) for one in ids],
        },
        "finish_reason": sampled[-1].finish_reason,
    }


def _usage(prompt: list[int], completion_tokens: int) -> dict[str, int]:
    counts = {"prompt_tokens": len(prompt), "completion_tokens": completion_tokens}
    return counts | {"total_tokens": sum(counts.values())}


async def _event(response: web.StreamResponse, value: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(value).encode() + b"\n\n")


def application(weights: Path, placement: model.Placement, log: TextIO | None) -> web.Application:
    """Returns the server of a policy, whose first weight version is 0."""
    app = web.Application(client_max_size=1 << 24)
    app[PLACEMENT], app[LOG] = placement, log
    app[BATCH] = Batch(model.load(weights, placement), "0")
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/update_weights", update_weights)
    app.router.add_get("/weight_info", weight_info)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", health)

    async def sampling(app: web.Application) -> Any:
        running = asyncio.create_task(app[BATCH].run())
        yield
        running.cancel()

    app.cleanup_ctx.append(sampling)
    return app


async def main() -> None:
    """Serves until the process is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--log", type=Path, help="append each prompt with its sampled ids and logprobs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    with contextlib.ExitStack() as files:
        log = files.enter_context(options.log.open("a")) if options.log else None
        placement = model.Placement(options.device, options.dtype)
        runner = web.AppRunner(application(options.weights, placement, log), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        print(f"http://{host}:{port}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
