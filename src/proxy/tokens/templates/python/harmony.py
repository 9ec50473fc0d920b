"""Writes gpt-oss's prompts as OpenAI's harmony library does, not as the model's chat template does.

The text is that of openai-harmony 0.0.8 (`src/encoding.rs`: `Render`, `template_tools_section`,
`json_schema_to_typescript`). Messages are converted by vLLM's rule (0.33,
`vllm/entrypoints/openai/parser/harmony_utils.py`), which uses no chat template for gpt-oss. A test compares the prompts
of random conversations with those of that library.
"""

import json
from datetime import datetime

from jinja2 import TemplateError

from template_messages import REASONING_FIELDS, Needs, to_parts
from template_words import NO_WORDS

# The same values as in the model's own template.
MODEL_IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
KNOWLEDGE_CUTOFF = "2024-06"
EFFORTS = ("low", "medium", "high")

# Content is passed as text, and tool arguments as the text that the model sampled.
NEEDS = Needs(True, False, True, True, False, True, True)


class HarmonyTemplate:
    """A renderer with the interface of `chat_templates.ChatTemplate`."""

    needs = NEEDS
    words = NO_WORDS

    def __init__(self):
        self.now = None

    def prepare(self, messages):
        """Converts the content of each message to one text, unless it is null."""
        return [prepare_message(message, f"messages.{at}") for at, message in enumerate(messages)]

    def render(self, messages, tools, documents, add_generation_prompt, kwargs):
        if kwargs.get("builtin_tools"):
            raise TemplateError("only the model's own template supports builtin_tools")
        instructions, talk = cut_instructions(messages)
        rendered = [format_system_message(kwargs, self.now or datetime.now(), bool(tools))]
        if instructions or tools:
            rendered.append(format_developer_message(instructions, tools))
        rendered.extend(drop_old_analysis(pair_with_channels(talk)))
        return "".join(rendered) + ("<|start|>assistant" if add_generation_prompt else "")


def prepare_message(message, path):
    result = {name: value for name, value in message.items() if value is not None}
    if "content" in result:
        # Parts are concatenated.
        result["content"] = "".join(to_parts(result["content"], f"{path}.content", NEEDS))
    return result


def cut_instructions(messages):
    """Returns the content of a leading system or developer message, which becomes the instructions in harmony's
    developer message, and the other messages."""
    if messages and messages[0].get("role") in ("system", "developer"):
        return messages[0].get("content"), messages[1:]
    return None, messages


def pair_with_channels(messages):
    """Yields pairs of a channel and a formatted message. The channel is `final` for the assistant's responses,
    `analysis` for its reasoning, `commentary` for tool calls and content beside them, and None for other messages."""
    calls = [call for message in messages for call in get_calls(message)]
    names = {call.get("id"): call["function"].get("name", "") for call in calls}
    for message in messages:
        role, content = message.get("role"), message.get("content", "")
        if role == "assistant":
            yield from list_assistant_messages(message, content)
        elif role == "tool":
            name = names.get(message.get("tool_call_id"), "")
            yield None, f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{content}<|end|>"
        elif role == "user":
            yield None, f"<|start|>user<|message|>{content}<|end|>"
        elif role not in ("system", "developer"):
            raise TemplateError(f"harmony has no role {role}")
        elif "content" in message:
            yield None, format_developer_message(content, None)


def list_assistant_messages(message, content):
    reasoning = next((message[name] for name in REASONING_FIELDS if name in message), None)
    calls = get_calls(message)
    if calls and content:
        yield "commentary", format_assistant_message("commentary", content)
    if reasoning:
        yield "analysis", format_assistant_message("analysis", reasoning)
    if not calls and content:
        yield "final", format_assistant_message("final", content)
    for call in calls:
        function = call["function"]
        head = f"<|start|>assistant to=functions.{function.get('name', '')}<|channel|>commentary json"
        yield "commentary", f"{head}<|message|>{format_arguments(function.get('arguments'))}<|call|>"


def get_calls(message):
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call.get("function"), dict)] if isinstance(calls, list) else []


def format_arguments(arguments):
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return json.dumps(arguments, ensure_ascii=False)


def format_assistant_message(channel, text):
    return f"<|start|>assistant<|channel|>{channel}<|message|>{text}<|end|>"


def drop_old_analysis(pairs):
    """Drops the reasoning before the last final response."""
    pairs = list(pairs)
    last_final = max((at for at, (channel, _) in enumerate(pairs) if channel == "final"), default=-1)
    return [text for at, (channel, text) in enumerate(pairs) if channel != "analysis" or at > last_final]


def format_system_message(kwargs, now, has_tools):
    effort = kwargs.get("reasoning_effort") or "medium"
    if effort not in EFFORTS:
        raise TemplateError(f"reasoning_effort is {effort}, but harmony supports only {', '.join(EFFORTS)}")
    identity = kwargs.get("model_identity") or MODEL_IDENTITY
    channels = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
    if has_tools:
        channels += "\nCalls to these tools must go to the commentary channel: 'functions'."
    dates = f"Knowledge cutoff: {KNOWLEDGE_CUTOFF}\nCurrent date: {now.strftime('%Y-%m-%d')}"
    sections = [f"{identity}\n{dates}", f"Reasoning: {effort}", channels]
    return f"<|start|>system<|message|>{join_sections(sections)}<|end|>"


def format_developer_message(instructions, tools):
    sections = [] if instructions is None else ["# Instructions", instructions]
    if tools:
        sections += ["# Tools", format_tool_namespace([tool.get("function") or {} for tool in tools])]
    return f"<|start|>developer<|message|>{join_sections(sections)}<|end|>"


def join_sections(sections):
    return "\n\n".join(sections)


def format_tool_namespace(functions):
    lines = ["## functions\n", "namespace functions {\n"]
    for function in functions:
        lines += [f"// {line}" for line in split_lines(function.get("description") or "")]
        parameters = function.get("parameters")
        taken = "()" if parameters is None else f"(_: {to_typescript(parameters, '')})"
        lines.append(f"type {function.get('name', '')} = {taken} => any;\n")
    return "\n".join([*lines, "} // namespace functions"])


def split_lines(text):
    """Splits a text like Rust's `str::lines`: a carriage return before a line feed is removed, and the last line is
    never empty."""
    *ended, last = text.split("\n")
    lines = [line.removesuffix("\r") for line in ended]
    return lines if last == "" else [*lines, last]


def to_typescript(schema, indent):
    """Converts a JSON schema to the type notation that the model was trained on."""
    schema = schema if isinstance(schema, dict) else {}
    variants, kinds = schema.get("oneOf"), schema.get("type")
    if isinstance(variants, list):
        types = [(to_nullable_type(variant, indent + "   "), format_trailing_comment(variant)) for variant in variants]
        return "".join(f"\n{indent} | {type_text}{comment}" for type_text, comment in types)
    if isinstance(kinds, list):
        names = ["number" if kind == "integer" else kind for kind in kinds if isinstance(kind, str)]
        if names:
            return " | ".join(names)
    match kinds:
        case "object":
            return to_object_type(schema, indent)
        case "string":
            choices = schema.get("enum")
            texts = [f'"{choice}"' for choice in choices if isinstance(choice, str)] if isinstance(choices, list) else []
            return " | ".join(texts) or "string"
        case "number" | "integer":
            return "number"
        case "boolean":
            return "boolean"
        case "array":
            return f"{to_typescript(schema['items'], indent)}[]" if "items" in schema else "Array<any>"
        case _:
            return "any"


def to_object_type(schema, indent):
    description, properties, required = (schema.get(name) for name in ("description", "properties", "required"))
    required = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    head = f"{indent}// {description}\n" if isinstance(description, str) else ""
    lines = [
        format_property(name, value if isinstance(value, dict) else {}, "" if name in required else "?", indent)
        for name, value in (properties.items() if isinstance(properties, dict) else [])
    ]
    return head + "{\n" + "".join(lines) + indent + "}"


def format_property(name, schema, optional, indent):
    title, description, examples = (schema.get(field) for field in ("title", "description", "examples"))
    text = f"{indent}// {title}\n{indent}//\n" if isinstance(title, str) else ""
    if isinstance(description, str) and "oneOf" not in schema:
        text += f"{indent}// {description}\n"
    if isinstance(examples, list) and examples:
        shown = [f'{indent}// - "{example}"\n' for example in examples if isinstance(example, str)]
        text += f"{indent}// Examples:\n" + "".join(shown)
    if isinstance(schema.get("oneOf"), list):
        return text + format_union(name, schema, optional, indent)
    default = "" if "oneOf" in schema or "default" not in schema else f" // {format_default(schema)}"
    return text + f"{indent}{name}{optional}: {to_nullable_type(schema, indent + '    ')},{default}\n"


def format_union(name, schema, optional, indent):
    """Formats a property with variants. Its description is above the name, unless the first variant has the same
    one."""
    variants, description = schema["oneOf"], schema.get("description")
    described = [variant if isinstance(variant, dict) else {} for variant in variants]
    first = described[0].get("description") if described else None
    is_above = isinstance(description, str) and description != first
    text = f"{indent}// {description}\n" if is_above else ""
    if "default" in schema:
        text += f"{indent}// {format_default(schema)}\n"
    text += f"{indent}{name}{optional}:\n"
    for at, variant in enumerate(described):
        own = variant.get("description")
        is_shown = isinstance(own, str) and own != description and not (at == 0 and is_above)
        notes = ([own] if is_shown else []) + ([format_default(variant)] if "default" in variant else [])
        comment = f" // {' '.join(notes)}" if notes else ""
        text += f"{indent} | {to_nullable_type(variant, indent + '   ')}{comment}\n"
    return text + f"{indent},\n"


def to_nullable_type(schema, indent):
    text = to_typescript(schema, indent)
    is_nullable = isinstance(schema, dict) and schema.get("nullable") is True
    return f"{text} | null" if is_nullable and "null" not in text else text


def format_trailing_comment(variant):
    if not isinstance(variant, dict):
        return ""
    description = variant.get("description")
    notes = [description] if isinstance(description, str) else []
    if "default" in variant:
        default = variant["default"]
        # Only in these comments, the default of a type with choices is quoted as JSON.
        is_choice = isinstance(default, str) and has_choices(variant)
        notes.append(f"default: {to_json(default)}" if is_choice else format_default(variant))
    return f" // {' '.join(notes)}" if notes else ""


def format_default(schema):
    default = schema["default"]
    if not isinstance(default, str):
        return f"default: {to_json(default)}"
    return f"default: {default}" if has_choices(schema) else f'default: "{default}"'


def has_choices(schema):
    choices = schema.get("enum")
    return isinstance(choices, list) and len(choices) > 0


def to_json(value):
    """Serializes a value as Rust's `serde_json` does."""
    match value:
        case bool() | None | str():
            return json.dumps(value, ensure_ascii=False)
        case dict():
            return "{" + ",".join(f"{to_json(name)}:{to_json(inner)}" for name, inner in value.items()) + "}"
        case list():
            return "[" + ",".join(map(to_json, value)) + "]"
        case int() if -(2**63) <= value < 2**64:
            return str(value)
        case _:
            return format_float(value)


def format_float(value):
    """Formats a number with Python's digits, and with an exponent at Rust's thresholds."""
    value = round_as_serde(json.dumps(value))
    sign = "-" if str(value).startswith("-") else ""
    mantissa, _, exponent = str(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    if digits == "":
        return f"{sign}0.0"
    # The value is 0.DIGITS times ten to the power of this.
    point = len(digits) - len(fraction) + int(exponent or 0)
    if point > 16 or point <= -5:
        digits = digits.rstrip("0")
        return f"{sign}{digits[0]}{'.' if len(digits) > 1 else ''}{digits[1:]}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    return f"{sign}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"


def round_as_serde(text):
    """Parses a number as `serde_json` does: the result may differ from the exact one in the last bit."""
    mantissa, _, scale = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    significand, exponent = 0, int(scale or 0) - len(fraction)
    digits = whole + fraction
    for place, digit in enumerate(digits):
        if significand * 10 + int(digit) >= 2**64:
            exponent += len(digits) - place
            break
        significand = significand * 10 + int(digit)
    value = float(significand)
    if exponent < -308:
        value, exponent = value / 1e308, exponent + 308
    power = float(f"1e{abs(exponent)}")
    value = value * power if exponent >= 0 else value / power
    return -value if text.startswith("-") else value
