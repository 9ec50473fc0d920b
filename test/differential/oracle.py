"""Renders messages with transformers: a line of JSON in, a line of JSON out.

{"template", "special_tokens", "messages", "tools", "kwargs", "add_generation_prompt", "continue_final_message"} becomes {"text"} or
{"error"}; {"processor", "sides"}, an image processor's configuration and image sizes, becomes {"tokens"}. `prepare` converts
messages to the form that the template needs (`needs`); transformers compiles and renders the template. With "format":
"harmony", openai-harmony renders the messages instead, which this program converts as vLLM does.
"""

import ast
import functools
import json
import math
import sys
from datetime import datetime
from pathlib import Path

import openai_harmony as harmony
import transformers
from tokenizers import Tokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils.chat_template_utils import render_jinja_template


def respond(request):
    if "sides" in request:
        return {"tokens": [count_tokens(request["processor"], *side) for side in request["sides"]]}
    if request["format"] == "harmony":
        text = render_harmony(request)
        return {"text": text, "ids": get_tokenizer(request["tokenizer"]).encode(text, add_special_tokens=False).ids}
    try:
        rendered, _ = render_jinja_template(
            conversations=[prepare(request["messages"], request["needs"])],
            tools=request["tools"],
            chat_template=request["template"],
            add_generation_prompt=request["add_generation_prompt"],
            continue_final_message=request["continue_final_message"],
            **{**request["special_tokens"], **request["kwargs"]},
        )
        return {"text": rendered[0], "ids": get_tokenizer(request["tokenizer"]).encode(rendered[0], add_special_tokens=False).ids}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def count_tokens(config, width, height):
    name = config["image_processor_type"]
    if name == "Qwen2VLImageProcessor":
        options = {key: value for key, value in config.items() if key != "image_processor_type"}
        processor = Qwen2VLImageProcessorPil(**options)
        return processor.get_number_of_image_patches(height, width, {}) // processor.merge_size**2
    if name == "Gemma4ImageProcessor":
        resize = load_function("gemma4", "get_aspect_ratio_preserving_size")
        size = resize(height, width, patch_size=16, max_patches=config["max_soft_tokens"] * 9, pooling_kernel_size=3)
        return size[0] * size[1] // 48**2
    if name == "Kimi_K25ImageProcessor":
        limits = {"max_patches": config["max_patches"], "max_size_per_side": config["size"]["max_height"]}
        _, size = load_function("kimi_k25", "navit_resize")(height, width, patch_size=14, merge_kernel_size=2, **limits)
        return size[0] * size[1] // 28**2
    limits = {"min_pixels": config["size"]["shortest_edge"], "max_pixels": config["size"]["longest_edge"]}
    family = {"Glm4vImageProcessor": "glm4v", "Glm46VImageProcessor": "glm46v"}[name]
    size = load_function(family, "smart_resize")(2, height, width, factor=28, **limits)
    return size[0] * size[1] // 28**2


@functools.cache
def load_function(family, name):
    """Loads a single function of transformers, because its module needs torch."""
    source = Path(transformers.__file__).parent / f"models/{family}/image_processing_{family}.py"
    function = next(node for node in ast.parse(source.read_text()).body if getattr(node, "name", None) == name)
    scope = {"math": math}
    exec(compile(ast.Module([function], []), str(source), "exec"), scope)
    return scope[name]


def render_harmony(request):
    encoding = get_harmony_encoding()
    conversation = harmony.Conversation.from_messages(to_harmony(request["messages"], request["tools"]))
    config = harmony.RenderConversationConfig(auto_drop_analysis=False)
    if request["add_generation_prompt"]:
        ids = encoding.render_conversation_for_completion(conversation, harmony.Role.ASSISTANT, config)
    else:
        ids = encoding.render_conversation(conversation, config)
    text = encoding.decode_utf8(ids)
    if encoding.encode(text, allowed_special="all") != list(ids):
        raise ValueError("the complete text has other ids than its parts")
    return text


@functools.cache
def get_harmony_encoding():
    return harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


def to_harmony(messages, tools):
    """Does what vLLM's `_make_request_with_harmony` and `harmony_utils.py` do."""
    today = datetime.now().strftime("%Y-%m-%d")
    system = harmony.SystemContent.new().with_conversation_start_date(today)
    result = [harmony.Message.from_role_and_content(harmony.Role.SYSTEM, system)]
    instructions = None
    if messages and messages[0]["role"] in ("system", "developer"):
        instructions, messages = messages[0].get("content"), messages[1:]
    if instructions or tools:
        developer = harmony.DeveloperContent.new()
        if instructions is not None:
            developer = developer.with_instructions(instructions)
        if tools:
            developer = developer.with_function_tools([to_tool_description(tool["function"]) for tool in tools])
        result.append(harmony.Message.from_role_and_content(harmony.Role.DEVELOPER, developer))
    calls = [call for message in messages for call in message.get("tool_calls") or []]
    names = {call["id"]: call["function"]["name"] for call in calls}
    parts = [part for message in messages for part in to_harmony_parts(message, names)]
    last_final = max((index for index, message in enumerate(parts) if message.channel == "final"), default=-1)
    return result + [message for index, message in enumerate(parts) if message.channel != "analysis" or index > last_final]


def to_tool_description(function):
    return harmony.ToolDescription.new(
        function["name"], function.get("description") or "", parameters=function.get("parameters")
    )


def to_harmony_parts(message, names):
    role, content, calls = message["role"], message.get("content"), message.get("tool_calls") or []
    if role == "tool":
        author = harmony.Author.new(harmony.Role.TOOL, f"functions.{names.get(message['tool_call_id'], '')}")
        result = harmony.Message.from_author_and_content(author, content or "")
        return [result.with_channel("commentary").with_recipient("assistant")]
    if role in ("system", "developer"):
        developer = harmony.DeveloperContent.new().with_instructions(content or "")
        return [harmony.Message.from_role_and_content(harmony.Role.DEVELOPER, developer)]
    if role != "assistant":
        return [harmony.Message.from_role_and_content(harmony.Role(role), content or "")]

    def to_part(text, channel):
        return harmony.Message.from_role_and_content(harmony.Role.ASSISTANT, text).with_channel(channel)

    parts = [to_part(content, "commentary")] if calls and content else []
    if message.get("reasoning_content"):
        parts.append(to_part(message["reasoning_content"], "analysis"))
    if content and not calls:
        parts.append(to_part(content, "final"))
    for call in calls:
        part = to_part(call["function"]["arguments"], "commentary")
        parts.append(part.with_recipient(f"functions.{call['function']['name']}").with_content_type("json"))
    return parts


@functools.cache
def get_tokenizer(path):
    return Tokenizer.from_file(path)


def prepare(messages, needs):
    """Converts OpenAI messages as a Python caller of `apply_chat_template` does: drops null fields; arguments are
    objects unless the template needs text, content is text unless the template needs parts."""
    result = []
    for message in messages:
        message = {name: value for name, value in message.items() if value is not None}
        if message["role"] == "developer" and not needs["takes_developer"]:
            message["role"] = "system"
        calls = message.get("tool_calls") or []
        message.pop("tool_calls", None)
        if calls:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": get_arguments(call["function"], needs)}} for call in calls
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
    if not needs["takes_late_systems"]:
        start = next((index for index, message in enumerate(result) if message["role"] not in ("system", "developer")), 0)
        for message in result[start:]:
            if message["role"] == "system":
                message["role"] = "user"
    return result if needs["takes_systems"] else merge_systems(result)


def merge_systems(messages):
    while len(messages) > 1 and messages[0]["role"] == messages[1]["role"] == "system":
        first, second, *rest = messages
        content = second["content"]
        if isinstance(content, str):
            joined = first["content"] + "\n" + content
        else:
            joined = [{"type": "text", "text": first["content"][0]["text"] + "\n" + content[0]["text"]}]
        messages = [{**first, "content": joined}, *rest]
    return messages


def get_arguments(function, needs):
    text = function["arguments"]
    return text if needs["arguments_as_text"] else json.loads(text)


for line in sys.stdin:
    print(json.dumps(respond(json.loads(line))), flush=True)
