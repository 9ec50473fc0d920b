"""Converts messages to the form that a chat template expects.

OpenAI clients send tool arguments as JSON text and content as text or as parts; most templates expect arguments as
objects and content as text. The rules are those of vLLM (`vllm/entrypoints/chat_utils.py`:
`_parse_chat_message_content`, `_postprocess_messages`) and, for reasoning and absent fields, of transformers
(`chat_template_utils.py`, `apply_chat_template`), so that a prompt is the same in every renderer. If these rules would
lose a message or a content, the template's needs take precedence. No standard declares the needs of a template; trial
renderings determine them, as in minja (`docs/CAPABILITIES_AND_POLYFILLS.md` of ochafik/minja).
"""

import itertools
import json
from typing import NamedTuple

from jinja2 import nodes

from specialize import Opaque


class Unsupported(Exception):
    """Content that is not text: its type, and its path in the request."""


class Damaged(Exception):
    """The error after which this interpreter must be replaced. The argument describes what a model's code did to it."""


class Needs(NamedTuple):
    """The form in which a template expects messages, and the roles that it renders."""

    # Whether content may be a text, and whether it may be a list of text parts. At least one of the two is true.
    takes_text: bool
    takes_parts: bool
    # Whether messages of the role developer are rendered. Most templates drop them silently, and some reject them.
    takes_developer: bool
    # Whether tool arguments are JSON text instead of an object.
    arguments_as_text: bool
    # Whether the content of a message with tool calls and without text is null instead of an empty text.
    null_content: bool
    # Whether all system messages at the beginning are rendered. Some templates silently drop the second one, and some
    # reject it.
    takes_systems: bool
    # Whether system messages after the beginning are rendered. Some templates drop them silently, and some reject them.
    takes_late_systems: bool


# The fields that may contain a message's reasoning, in order of precedence.
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


def to_template_messages(messages, needs):
    prepared = [to_template_message(message, needs, f"messages.{at}") for at, message in enumerate(messages)]
    placed = convert_late_systems(prepared, needs)
    return placed if needs.takes_systems else merge_systems(placed, needs)


def convert_late_systems(messages, needs):
    """Converts system messages after the beginning to user messages, unless the template renders them."""
    if needs.takes_late_systems:
        return messages
    is_late = False
    result = []
    for message in messages:
        is_late = is_late or message.get("role") not in ("system", "developer")
        is_moved = is_late and message.get("role") == "system"
        result.append({**message, "role": "user"} if is_moved else message)
    return result


def merge_systems(messages, needs):
    """Merges the leading system messages. Codex, for example, begins with its instructions and a developer message."""
    rules = list(itertools.takewhile(lambda message: message.get("role") == "system", messages))
    texts = [text for rule in rules for text in list_texts(rule["content"])]
    # The texts contain None for an image; messages with images are not merged.
    if len(rules) < 2 or None in texts:
        return messages
    return [{**rules[0], "content": to_content(["\n".join(texts)], needs)}, *messages[len(rules) :]]


def list_texts(content):
    return [part.get("text") for part in content] if isinstance(content, list) else [content]


def to_template_message(message, needs, path):
    # Templates test `is defined`, so a field that a client sends as null must be absent.
    result = {name: value for name, value in message.items() if value is not None}
    # A developer message is a system prompt under another name. vLLM would lose the message.
    if result.get("role") == "developer" and not needs.takes_developer:
        result["role"] = "system"
    reasoning = next((result[name] for name in REASONING_FIELDS if name in result), None)
    if reasoning is not None:
        result = {"thinking": reasoning, "reasoning": reasoning, **result, "reasoning_content": reasoning}
    calls = result.pop("tool_calls", None)
    if not isinstance(calls, list):
        calls = []
    if calls:
        result["tool_calls"] = [to_template_call(call, needs) for call in calls]
    parts = to_parts(message.get("content"), f"{path}.content", needs)
    is_bare_call = calls and all(part == "" for part in parts)
    result["content"] = None if needs.null_content and is_bare_call else to_content(parts, needs)
    return result


# Represents an image among the text parts of a message.
IMAGE = {"type": "image"}


def to_content(parts, needs):
    """Converts parts to content. A single part becomes a text if the template accepts both forms, because a template
    that iterates over the content of some messages may expect a text in others."""
    if IMAGE not in parts and needs.takes_text and (len(parts) <= 1 or not needs.takes_parts):
        return parts[0] if parts and isinstance(parts[0], Opaque) else "\n".join(parts)
    return [dict(IMAGE) if part is IMAGE else {"type": "text", "text": part} for part in parts]


def to_parts(content, path, needs):
    if content is None:
        return []
    if isinstance(content, (str, Opaque)):
        return [content]
    return [to_part(part, f"{path}.{at}", needs) for at, part in enumerate(content)]


def to_part(part, path, needs):
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return part[kind]
    # The proxy's replacement for an image that it has read.
    if kind == "shown_image" and needs.takes_parts:
        return IMAGE
    raise Unsupported("image_url" if kind == "shown_image" else kind, path)


def to_template_call(call, needs):
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    written = function.get("arguments")
    arguments = to_text(written) if needs.arguments_as_text else to_object(written)
    return {**call, "function": {**function, "arguments": arguments}}


def to_text(written):
    """Returns tool arguments as JSON text."""
    if written is None or written == "":
        return "{}"
    return written if isinstance(written, str) else json.dumps(written, ensure_ascii=False)


def to_object(written):
    """Parses tool arguments. Text that is not a JSON object or list is returned unchanged, so that the template can
    write what the model sampled."""
    if written is None or written == "":
        return {}
    if not isinstance(written, str):
        return written
    try:
        parsed = json.loads(written)
    except (ValueError, RecursionError):
        return written
    return parsed if isinstance(parsed, (dict, list)) else written


# The first combination that works is used; vLLM's comes first. DeepSeek's own templates drop the tool calls of a
# message whose content is not null, and fail if arguments are not text.
CALL_TRIALS = [
    {"arguments_as_text": as_text, "null_content": null_content}
    for as_text in (False, True)
    for null_content in (False, True)
]

TRIAL_ARGUMENTS = {"trial_key": "trial_value"}


def find_needs(syntax_tree, try_to_render):
    """Determines a template's needs by trial renderings. `try_to_render` returns the text of messages; an empty text if
    the template fails."""

    def render_text(messages, needs):
        return try_to_render(to_template_messages(messages, needs))

    takes_parts = loops_over_content(syntax_tree)
    basic = Needs(True, takes_parts, True, False, False, True, True)
    user = {"role": "user", "content": "trial_text"}
    basic = basic._replace(takes_text=not takes_parts or "trial_text" in render_text([user], basic._replace(takes_parts=False)))
    basic = find_roles(basic, render_text)
    rules = [{"role": "system", "content": text} for text in ("trial_rule", "trial_order")]
    texts = [render_text([*rules, user], basic._replace(takes_systems=each)) for each in (True, False)]
    takes = [all(rule["content"] in text for rule in rules) for text in texts]
    basic = basic._replace(takes_systems=takes != [False, True])
    trials = [basic._replace(**trial) for trial in CALL_TRIALS]
    return next((needs for needs in trials if shows_call(render_text(create_trial_call(user), needs))), trials[0])


def find_roles(needs, render_text):
    """Returns the needs with the roles that trial renderings contain. `render_text` returns the text of messages; an
    empty text if they are rejected."""
    user = {"role": "user", "content": "trial_text"}
    rule = {"role": "developer", "content": "trial_rule"}
    needs = needs._replace(takes_developer="trial_rule" in render_text([rule, user], needs))
    late = [user, {"role": "assistant", "content": "trial_answer"}, {**rule, "role": "system"}, user]
    takes = ["trial_rule" in render_text(late, needs._replace(takes_late_systems=each)) for each in (True, False)]
    return needs._replace(takes_late_systems=takes != [False, True])


def create_trial_call(user):
    """Returns a conversation with a tool call. Its id has nine letters, because Mistral's templates reject other
    ids."""
    function = {"name": "trial_tool", "arguments": json.dumps(TRIAL_ARGUMENTS)}
    call = {"id": "trialcall", "type": "function", "function": function}
    return [user, {"role": "assistant", "content": None, "tool_calls": [call]}]


def shows_call(text):
    """Returns whether a text contains the trial call, with arguments that are not encoded twice. The tool is not
    listed, so its name can only come from the call."""
    parts = ["trial_tool", "trial_key", "trial_value"]
    return all(part in text for part in parts) and '\\"trial_key' not in text


def loops_over_content(syntax_tree):
    """Returns whether the template iterates over content, as vLLM's `_detect_content_format` does."""
    names = set()
    for macro in syntax_tree.find_all(nodes.Macro):
        names.update(argument.name for argument in macro.args if argument.name == "content")
    for assignment in syntax_tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and is_content(assignment.node, names):
            names.add(assignment.target.name)
    return any(is_content(loop.iter, names) for loop in syntax_tree.find_all(nodes.For))


def is_content(node, names):
    match node:
        case nodes.Name(name=name):
            return name in names
        case nodes.Filter(node=inner):
            return is_content(inner, names)
        case nodes.Getattr(attr=attribute):
            return attribute == "content"
        case nodes.Getitem(node=inner, arg=nodes.Slice()):
            return is_content(inner, names)
        case nodes.Getitem(arg=nodes.Const(value=value)):
            return value == "content"
        case _:
            return False
