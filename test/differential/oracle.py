"""Renders requests with transformers itself: a line of JSON in, a line of JSON out.

{"template", "special_tokens", "messages", "tools", "kwargs", "add_generation_prompt", "continue_final_message"} becomes {"text"} or
{"error"}; {"processor", "sides"}, of an image processor's configuration and images, becomes {"tokens"}. Messages come prepared
as a template takes them (the form is the template's, see `needs`), and go through transformers' own compiling and rendering.
"""

import functools
import json
import sys

from tokenizers import Tokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils.chat_template_utils import render_jinja_template


def answer(request):
    if "sides" in request:
        return {"tokens": tokens_of(Qwen2VLImageProcessorPil(**request["processor"]), request["sides"])}
    try:
        rendered, _ = render_jinja_template(
            conversations=[prepared(request["messages"], request["needs"])],
            tools=request["tools"],
            chat_template=request["template"],
            add_generation_prompt=request["add_generation_prompt"],
            continue_final_message=request["continue_final_message"],
            **{**request["special_tokens"], **request["kwargs"]},
        )
        return {"text": rendered[0], "ids": tokenizer_at(request["tokenizer"]).encode(rendered[0], add_special_tokens=False).ids}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def tokens_of(processor, sides):
    return [patches_of(processor, *side) // processor.merge_size**2 for side in sides]


def patches_of(processor, width, height):
    return processor.get_number_of_image_patches(height, width, {})


@functools.cache
def tokenizer_at(path):
    return Tokenizer.from_file(path)


def prepared(messages, needs):
    """What a Python caller of `apply_chat_template` makes of OpenAI messages: absent fields are left out, arguments are
    objects unless the template wants text, content is text unless it wants parts."""
    result = []
    for message in messages:
        message = {name: value for name, value in message.items() if value is not None}
        if message["role"] == "developer" and not needs["takes_developer"]:
            message["role"] = "system"
        calls = message.get("tool_calls") or []
        message.pop("tool_calls", None)
        if calls:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": arguments(call["function"], needs)}} for call in calls
            ]
        text = message.get("content", "")
        if calls and text == "" and needs["null_content"]:
            message["content"] = None
        elif needs["takes_text"]:
            message["content"] = text
        else:
            # A message without content has no parts; one with an empty text has one.
            message["content"] = [{"type": "text", "text": text}] if "content" in message else []
        if "reasoning_content" in message:
            message["reasoning"] = message["reasoning_content"]
        result.append(message)
    return result


def arguments(function, needs):
    text = function["arguments"]
    return text if needs["arguments_as_text"] else json.loads(text)


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
