"""An engine in vLLM's wire format that samples from a trainer's own model, so that no weights have to be sent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from aiohttp import web

from .web_server import serve

CONTEXT = 512


@dataclass
class PolicyEngine:
    """Samples at temperature 1, the same in each run: each request seeds its random generator."""

    model: Any
    end_of_turn: int
    url: str = ""
    #: The error that the engine adds to each reported logprob.
    logprob_error: float = 0.0
    requests: int = 0

    async def completions(self, request: web.Request) -> web.Response:
        """`POST /v1/completions` with a prompt of ids, as a proxy in token mode sends it."""
        body = await request.json()
        ids, logprobs = self._sample(body["prompt"], body["max_tokens"])
        choice = {
            "index": 0,
            "text": "",
            "token_ids": ids,
            "prompt_token_ids": body["prompt"],
            "logprobs": {"token_logprobs": logprobs, "tokens": [f"token_id:{token}" for token in ids]},
            "finish_reason": "stop" if ids[-1] == self.end_of_turn else "length",
        }
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        return web.json_response(
            {"id": "c", "object": "text_completion", "choices": [choice], "usage": usage}
        )

    @torch.no_grad()
    def _sample(self, prompt: list[int], limit: int) -> tuple[list[int], list[float]]:
        self.requests += 1
        generator = torch.Generator().manual_seed(self.requests)
        ids, logprobs = list(prompt), list[float]()
        while len(logprobs) < limit and (not logprobs or ids[-1] != self.end_of_turn):
            scores = self.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            token = int(scores.exp().multinomial(1, generator=generator))
            ids.append(token)
            logprobs.append(float(scores[token]) + self.logprob_error)
        return ids[len(prompt) :], logprobs


async def _models(_: web.Request) -> web.Response:
    entry = {"id": "policy", "object": "model", "owned_by": "vllm", "max_model_len": CONTEXT}
    return web.json_response({"object": "list", "data": [entry]})


async def _health(_: web.Request) -> web.Response:
    return web.Response()


@contextlib.contextmanager
def running(engine: PolicyEngine) -> Iterator[PolicyEngine]:
    """Serves the engine on a separate thread, because the trainer's thread waits for its rollouts."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    app = web.Application()
    app.router.add_post("/v1/completions", engine.completions)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/health", _health)
    runner, engine.url = asyncio.run_coroutine_threadsafe(serve(app), loop).result(30)
    try:
        yield engine
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
