"""Renders chats with a model's prompt encoder and Hugging Face's tokenizer, or with mistral-common as vLLM calls it
(`vllm/tokenizers/mistral.py`): a line of JSON in, a line of JSON out."""

import copy
import importlib.util
import json
import sys

from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode, get_validator
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from tokenizers import Tokenizer

encoders = {}
tokenizers = {}


def load_encoder(path):
    if path not in encoders:
        spec = importlib.util.spec_from_file_location("encoder", path)
        encoders[path] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(encoders[path])
    return encoders[path]


def add_tools(messages, tools):
    """Adds the tools to the leading system message, as in the examples that DeepSeek publishes."""
    messages = copy.deepcopy(messages)
    if tools:
        if messages[0]["role"] not in ("system", "developer"):
            messages.insert(0, {"role": "system", "content": ""})
        messages[0]["tools"] = tools
    return messages


def encode(request):
    messages = add_tools(request["messages"], request["tools"])
    for message in messages:
        # vLLM's copies name the field `reasoning`.
        if "reasoning_content" in message:
            message["reasoning"] = message["reasoning_content"]
    text = load_encoder(request["encoder"]).encode_messages(messages, **request["arguments"])
    tokenizer = tokenizers.setdefault(request["tokenizer"], None) or Tokenizer.from_file(request["tokenizer"])
    tokenizers[request["tokenizer"]] = tokenizer
    return {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}


def encode_with_mistral(request):
    path = request["tekken"]
    if path not in tokenizers:
        tokenizers[path] = MistralTokenizer.from_file(path, mode=ValidationMode.test)
    mistral = tokenizers[path]
    version = mistral.instruct_tokenizer.tokenizer.version
    thinks = getattr(mistral.instruct_tokenizer, "BEGIN_THINK", None) is not None
    messages = [convert_as_vllm(message, thinks) for message in request["messages"]]
    effort = {"reasoning_effort": request["reasoning_effort"]} if version.supports_model_settings else {}
    chat = ChatCompletionRequest.from_openai(messages=messages, tools=request["tools"], **effort)
    # The differential also needs conversations that end with a completion, which only this mode accepts.
    is_complete = messages[-1]["role"] != "assistant"
    mode = ValidationMode.test if is_complete else ValidationMode.agnostic
    mistral._chat_completion_request_validator = get_validator(version, mode)
    ids = mistral.encode_chat_completion(chat).tokens
    return {"text": mistral.decode(ids, special_token_policy=SpecialTokenPolicy.KEEP), "ids": ids}


def convert_as_vllm(message, thinks):
    message = copy.deepcopy(message)
    for call in message.get("tool_calls") or []:
        call["id"] = call["id"][-9:]
    if "tool_call_id" in message:
        message["tool_call_id"] = message["tool_call_id"][-9:]
    if not thinks:
        # mistral-common rejects reasoning here.
        message.pop("reasoning_content", None)
    return message


for line in sys.stdin:
    try:
        request = json.loads(line)
        response = encode_with_mistral(request) if "tekken" in request else encode(request)
    except Exception as error:
        response = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(response), flush=True)
