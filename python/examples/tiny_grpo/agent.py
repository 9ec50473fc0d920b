"""The agent: a loop around the openai package and a calculator, without code for the proxy or for training.

As a command it solves ``TASK_PROMPT``; ``agents.py`` runs many agents in one process.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from openai import AsyncOpenAI

from .tasks import SYSTEM, TOOLS, calculate

MAX_TURNS = 4


async def solve(client: AsyncOpenAI, question: str, *, tidy: bool = False, noisy: bool = False) -> str:
    """Runs the model's tool calls until it answers; returns the answer.

    :param tidy: echo the model's messages as many clients do: trimmed, and with arguments serialized again
    :param noisy: request a title first, and send the first request twice, as after a lost response
    """
    if noisy:
        title = [{"role": "user", "content": f"A title: {question}"}]
        await client.chat.completions.create(model="tiny", messages=title, max_tokens=24)
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    for turn in range(MAX_TURNS):
        request = {"model": "tiny", "messages": messages, "tools": TOOLS, "max_tokens": 48}
        answer = await client.chat.completions.create(**request)
        if noisy and not turn:
            answer = await client.chat.completions.create(**request)
        message = answer.choices[0].message.to_dict()
        messages.append(_tidied(message) if tidy else message)
        if not message.get("tool_calls"):
            return message.get("content") or ""
        for call in message["tool_calls"]:
            content = _run(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return ""


def _run(arguments: str) -> str:
    try:
        return calculate(json.loads(arguments)["expression"])
    except (ValueError, KeyError, TypeError):
        return "error"


def _tidied(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        call | {"function": call["function"] | {"arguments": _tidied_json(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or []
    ]
    return (
        message
        | {"content": (message.get("content") or "").strip()}
        | ({"tool_calls": calls} if calls else {})
    )


def _tidied_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text), separators=(",", ":"))
    except ValueError:
        return "{}"


if __name__ == "__main__":
    print(asyncio.run(solve(AsyncOpenAI(), os.environ["TASK_PROMPT"])))
