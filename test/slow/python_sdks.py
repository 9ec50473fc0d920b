"""Sends requests in every dialect to one proxy, and validates each response with the types of OpenAI's and Anthropic's
packages.

Their clients do not validate responses: a mismatch surfaces later, as a missing attribute. Here every body and every
event is validated strictly, and fields that the types do not know must be on our list.
"""

import json
import os
import urllib.request
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

URL = os.environ["PROXY_URL"]
CASES = json.loads(os.environ["CASES"])

# Fields that the proxy adds (docs/dialects.md), and fields that OpenAI sends although these types lack them
# (store; the name of a call whose arguments are done).
OURS = {"reasoning", "reasoning_content", "token_ids", "prompt_token_ids", "provider_specific_fields", "stop_reason", "max_model_len", "store", "name"}

TOOL = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": TOOL}}]
HI = [{"role": "user", "content": "Hi"}]
CHAT = {"model": "m", "messages": HI, "tools": CHAT_TOOLS}
RESPONSES = {"model": "m", "input": "Hi", "tools": [{"type": "function", "name": "weather", "parameters": TOOL, "strict": False}]}
MESSAGES = {"model": "m", "max_tokens": 100, "messages": HI, "tools": [{"name": "weather", "input_schema": TOOL}]}

def unknown_fields(value: Any, path: str) -> Iterator[str]:
    """Yields the fields, at any depth, that the types do not declare."""
    if isinstance(value, BaseModel):
        for name in value.model_extra or {}:
            if name not in OURS:
                yield f"{path}.{name}"
        for name in type(value).model_fields:
            yield from unknown_fields(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from unknown_fields(item, f"{path}[]")


def validate(model: Any, text: str, what: str) -> Any:
    """Validates a JSON text without conversions, and with all fields."""
    value = TypeAdapter(model).validate_json(text, strict=True)
    extra = list(unknown_fields(value, what))
    assert not extra, extra
    return value


def post(session: str, path: str, body: dict[str, Any]) -> str:
    request = urllib.request.Request(f"{URL}/{session}/v1/{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read().decode()


def events(text: str) -> list[str]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line for line in lines if line != "[DONE]"]


def validate_case(session: str, case: str) -> None:
    validate(ChatCompletion, post(session, "chat/completions", CHAT), f"{case}: chat")
    for usage in ({}, {"stream_options": {"include_usage": True}}):
        for event in events(post(session, "chat/completions", {**CHAT, "stream": True, **usage})):
            validate(ChatCompletionChunk, event, f"{case}: chat, streamed")
    validate(Response, post(session, "responses", RESPONSES), f"{case}: responses")
    for event in events(post(session, "responses", {**RESPONSES, "stream": True})):
        validate(ResponseStreamEvent, event, f"{case}: responses, streamed")
    validate(Message, post(session, "messages", MESSAGES), f"{case}: messages")
    for event in events(post(session, "messages", {**MESSAGES, "stream": True})):
        if json.loads(event)["type"] != "ping":
            validate(RawMessageStreamEvent, event, f"{case}: messages, streamed")
    if "tool" not in case and "reasoning" not in case:
        validate_completions(session, case)


def validate_completions(session: str, case: str) -> None:
    completion = {"model": "m", "prompt": "Hi"}
    validate(Completion, post(session, "completions", completion), f"{case}: completions")
    for event in events(post(session, "completions", {**completion, "stream": True})):
        # The type does not allow null for a completion in progress, which OpenAI itself sends.
        finished = event.replace('"finish_reason":null', '"finish_reason":"stop"')
        validate(Completion, finished, f"{case}: completions, streamed")


def compare_stream_helpers(session: str) -> None:
    """Compares the results of the clients' own stream helpers."""
    chat = openai.OpenAI(base_url=f"{URL}/{session}/v1", api_key="none", max_retries=0)
    messages = anthropic.Anthropic(base_url=f"{URL}/{session}", api_key="none", max_retries=0)
    with chat.chat.completions.stream(**CHAT) as stream:
        chat_message = stream.get_final_completion().choices[0].message
    with chat.responses.stream(**RESPONSES) as stream:
        response = stream.get_final_response()
    with messages.messages.stream(**MESSAGES) as stream:
        message = stream.get_final_message()
    calls = [call.function.name for call in chat_message.tool_calls or []]
    assert calls == [item.name for item in response.output if item.type == "function_call"], (calls, response.output)
    assert calls == [block.name for block in message.content if block.type == "tool_use"], (calls, message.content)
    assert (chat_message.content or "") == response.output_text, (chat_message.content, response.output_text)


for index, case in enumerate(CASES):
    validate_case(f"s{index}", case)
    # OpenAI's helpers raise an error for a truncated response from any server.
    if "cut" not in case:
        compare_stream_helpers(f"s{index}")
    print(f"{case}: fits")
validate(MessageTokensCount, post("s0", "messages/count_tokens", {"model": "m", "messages": HI}), "count_tokens")
with urllib.request.urlopen(f"{URL}/s0/v1/models", timeout=60) as response:
    models = json.load(response)["data"]
for model in models:
    validate(Model, json.dumps(model), "models")
print("done")
