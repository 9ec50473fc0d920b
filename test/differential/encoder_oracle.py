"""What a model's prompt encoder and Hugging Face's tokenizer make of a chat: a request and a response per line."""

import copy
import importlib.util
import json
import sys

from tokenizers import Tokenizer

encoders = {}
tokenizers = {}


def encoder_at(path):
    if path not in encoders:
        spec = importlib.util.spec_from_file_location("encoder", path)
        encoders[path] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(encoders[path])
    return encoders[path]


def with_tools(messages, tools):
    """Adds the tools to the leading system message, as in the examples that DeepSeek publishes."""
    messages = copy.deepcopy(messages)
    if tools:
        if messages[0]["role"] not in ("system", "developer"):
            messages.insert(0, {"role": "system", "content": ""})
        messages[0]["tools"] = tools
    return messages


def encoded(request):
    messages = with_tools(request["messages"], request["tools"])
    for message in messages:
        # vLLM's copies have another name for it.
        if "reasoning_content" in message:
            message["reasoning"] = message["reasoning_content"]
    text = encoder_at(request["encoder"]).encode_messages(messages, **request["arguments"])
    tokenizer = tokenizers.setdefault(request["tokenizer"], None) or Tokenizer.from_file(request["tokenizer"])
    tokenizers[request["tokenizer"]] = tokenizer
    return {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}


for line in sys.stdin:
    try:
        answer = encoded(json.loads(line))
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
