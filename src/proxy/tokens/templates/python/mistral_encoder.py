"""Encodes prompts of models that Mistral publishes with `tekken.json` and without a chat template.

The rules are those of mistral-common 1.13 (`protocol/instruct/normalize.py`, `validator.py`,
`tokens/tokenizers/instruct.py`), whose own code needs native modules, in the mode in which vLLM calls it
(`vllm/tokenizers/mistral.py`): identifiers of tool calls are shortened to their last nine characters. Names and schemas
of tools are not checked here. mistral-common rejects earlier reasoning if the tokenizer has no tokens for it; this
encoder omits the reasoning.

This file runs as a model's encoder (`model_encoder.py`). `mistral-encoder.ts` appends assignments that set the
constants below to the values of the model's `tekken.json`.
"""

import json
import re

# The version of the tokenizer's file: 3, 7, 11, 13 or 15.
VERSION = 13
# Whether the tokenizer has tokens for reasoning.
HAS_THINKING = True
# The values of `reasoning_effort` and the default, from version 15 on. Prompts state no effort if there are no values.
EFFORTS = ()
DEFAULT_EFFORT = None
# The text between the text parts of a message's content.
PART_SEPARATOR = "\n\n"

# The text between the contents of merged messages.
MESSAGE_SEPARATOR = "\n\n"

# By role, the roles of the messages that may follow.
SUCCESSORS = {
    "system": ("user", "assistant", "system"),
    "user": ("assistant", "system", "user"),
    "assistant": ("assistant", "user", "tool"),
    "tool": ("assistant", "tool", "user"),
}


class Segment:
    def __init__(self, text, allow_special):
        self.text = text
        self.allow_special = allow_special


def create_special(token):
    return Segment(token, True)


def create_plain(text):
    return Segment(text, False)


def build_chat_segments(messages, tools, *, reasoning_effort, **_):
    messages = [read_message(message) for message in messages]
    check_order(messages)
    check_results(messages)
    merged = normalize(messages)
    users = [at for at, message in enumerate(merged) if message["role"] == "user"]
    # Tools and settings precede the first user message or, up to version 11, the last one.
    at_settings = (users[0] if VERSION >= 13 else users[-1]) if users else None
    segments = [create_special("<s>")]
    for at, message in enumerate(merged):
        if at == at_settings:
            segments += write_tools(tools) + write_settings(reasoning_effort)
        segments += WRITERS[message["role"]](message)
    return segments


def read_message(message):
    role = "system" if message["role"] == "developer" else message["role"]
    if role not in SUCCESSORS:
        raise ValueError(f"Unknown message role: {role}")
    given = {"role": role, "content": message.get("content") or ""}
    if role == "assistant":
        given["tool_calls"] = [read_call(call) for call in message.get("tool_calls") or []]
        if HAS_THINKING and message.get("reasoning") is not None:
            given["reasoning"] = message["reasoning"]
        if VERSION < 7 and bool(given["content"]) == bool(given["tool_calls"]):
            raise ValueError("Assistant message must have either content or tool_calls, but not both.")
    if role == "tool":
        given["tool_call_id"] = shorten_call_id(message.get("tool_call_id"))
    return given


def read_call(call):
    function = call["function"]
    arguments = parse_or_keep(function.get("arguments") or "{}")
    return {"name": function["name"], "arguments": arguments, "id": shorten_call_id(call.get("id", "null"))}


def shorten_call_id(call_id):
    if not call_id or call_id == "null":
        raise ValueError("Tool call id has to be defined.")
    shortened = call_id[-9:]
    if VERSION < 13 and not re.match(r"^[a-zA-Z0-9]{9}$", shortened):
        raise ValueError(f"Tool call id was {shortened} but must be a-z, A-Z, 0-9, with a length of 9.")
    return shortened


def parse_or_keep(text):
    """Parses JSON. Returns other text unchanged."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def check_order(messages):
    if len(messages) == 1 and messages[0]["role"] not in ("user", "system"):
        raise ValueError("Conversation must start with a user message or system message")
    for before, message in zip(messages, messages[1:]):
        if message["role"] not in SUCCESSORS[before["role"]]:
            raise ValueError(f"Unexpected role '{message['role']}' after role '{before['role']}'")


def check_results(messages):
    """Checks that all tool calls have results before the assistant's next message. The number of results is compared,
    and from version 11 on also their identifiers."""
    missing, expected, seen = 0, [], []
    for message in messages[1:]:
        if message["role"] == "tool":
            if VERSION >= 11:
                check_result(message["tool_call_id"], expected, seen)
            seen.append(message["tool_call_id"])
            missing -= 1
        elif message["role"] == "assistant":
            if missing != 0:
                raise ValueError("Not the same number of function calls and responses")
            missing = len(message["tool_calls"])
            expected, seen = [call["id"] for call in message["tool_calls"]], []
            if VERSION >= 11 and any(call_id in expected[:at] for at, call_id in enumerate(expected)):
                raise ValueError("Duplicate tool call id in assistant message")


def check_result(call_id, expected, seen):
    if call_id in seen:
        raise ValueError(f"Duplicate tool call id {call_id} in tool results")
    if call_id not in expected:
        raise ValueError(f"Unexpected tool call id {call_id} in tool results")


def normalize(messages):
    """Merges consecutive messages of the user and of the assistant, and sorts tool results in the order of their
    calls."""
    merged, calls = [], []
    for group in group_by_role(messages):
        role = group[0]["role"]
        if role == "user":
            merged.append({"role": role, "content": join_texts(message["content"] for message in group)})
        elif role == "assistant":
            merged.append(join_assistant_messages(group))
            calls += [call["id"] for call in merged[-1]["tool_calls"]]
        elif role == "tool":
            merged += sort_results(group, calls)
            calls = []
        elif VERSION >= 7:
            merged += group
    if VERSION >= 7:
        return merged
    if not merged or merged[0]["role"] != "user":
        merged.insert(0, {"role": "user", "content": ""})
    return add_instructions(merged, [message["content"] for message in messages if message["role"] == "system"])


def group_by_role(messages):
    groups = []
    for message in messages:
        if groups and groups[-1][0]["role"] == message["role"]:
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups


def join_texts(texts):
    return MESSAGE_SEPARATOR.join(text for text in texts if text)


def join_assistant_messages(group):
    """Merges messages. A chunk of the result is a pair of a kind, `reasoning` or `text`, and a list of consecutive
    texts."""
    chunks = []
    for message in group:
        if "reasoning" in message:
            chunks.append(("reasoning", [message["reasoning"]]))
        if message["content"]:
            if not chunks or chunks[-1][0] == "reasoning":
                chunks.append(("text", []))
            chunks[-1][1].append(message["content"])
    calls = [call for message in group for call in message["tool_calls"]]
    if not chunks and not calls:
        raise ValueError("Invalid assistant message: it has no content and no tool calls")
    return {"role": "assistant", "chunks": chunks, "tool_calls": calls}


def sort_results(results, calls):
    if VERSION < 11:
        return results
    places = {}
    for at, call_id in enumerate(calls):
        places[call_id] = at
    return sorted(results, key=lambda result: places.get(result["tool_call_id"], len(places)))


def add_instructions(messages, instructions):
    """Prepends system messages to the last user message, as in version 3."""
    rules = join_texts(instructions)
    if not rules:
        return messages
    last = max(at for at, message in enumerate(messages) if message["role"] == "user")
    content = MESSAGE_SEPARATOR.join((rules, messages[last]["content"]))
    return [*messages[:last], {"role": "user", "content": content}, *messages[last + 1 :]]


def write_tools(tools):
    if not tools:
        return []
    listed = to_json([describe_tool(tool) for tool in tools])
    return [create_special("[AVAILABLE_TOOLS]"), create_plain(listed), create_special("[/AVAILABLE_TOOLS]")]


def describe_tool(tool):
    function = tool["function"]
    described = {
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": {} if function.get("parameters") is None else function["parameters"],
    }
    return {"type": "function", "function": described}


def write_settings(effort):
    if not EFFORTS:
        return []
    chosen = DEFAULT_EFFORT if effort is None else effort
    if chosen not in EFFORTS:
        raise ValueError(f"reasoning_effort should be one of {', '.join(EFFORTS)}, got {chosen}.")
    settings = to_json({"reasoning_effort": chosen})
    return [create_special("[MODEL_SETTINGS]"), create_plain(settings), create_special("[/MODEL_SETTINGS]")]


def write_user(message):
    return [create_special("[INST]"), create_plain(message["content"]), create_special("[/INST]")]


def write_system(message):
    return [create_special("[SYSTEM_PROMPT]"), create_plain(message["content"]), create_special("[/SYSTEM_PROMPT]")]


def write_tool(message):
    call_id, content = message["tool_call_id"], message["content"]
    if VERSION < 7:
        parts = [create_plain(to_json({"content": parse_or_keep(content or "{}"), "call_id": call_id}))]
    elif VERSION < 13:
        parts = [create_plain(call_id), create_special("[TOOL_CONTENT]"), create_plain(content)]
    else:
        parts = [create_plain(content)]
    return [create_special("[TOOL_RESULTS]"), *parts, create_special("[/TOOL_RESULTS]")]


def write_assistant(message):
    chunks = message["chunks"]
    has_reasoning = any(kind == "reasoning" for kind, _ in chunks)
    segments = []
    for kind, texts in chunks:
        text = MESSAGE_SEPARATOR.join(texts)
        if kind == "reasoning":
            segments += [create_special("[THINK]"), create_plain(text), create_special("[/THINK]")]
        else:
            segments.append(create_plain(text if has_reasoning else text.rstrip(" ")))
    return [*segments, *write_calls(message["tool_calls"]), create_special("</s>")]


def write_calls(calls):
    if not calls:
        return []
    if VERSION < 11:
        return [create_special("[TOOL_CALLS]"), create_plain(to_json(calls))]
    segments = []
    for call in calls:
        call_id = [create_special("[CALL_ID]"), create_plain(call["id"])] if VERSION < 13 else []
        segments += [create_special("[TOOL_CALLS]"), create_plain(call["name"]), *call_id]
        segments += [create_special("[ARGS]"), create_plain(to_json(call["arguments"]))]
    return segments


def to_json(value):
    return json.dumps(value, ensure_ascii=False)


WRITERS = {"user": write_user, "system": write_system, "tool": write_tool, "assistant": write_assistant}
