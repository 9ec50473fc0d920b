"""Parses completions by a model's `response_template`, with transformers' own parser.

The output follows vLLM's adapter of the same parser (`vllm/parser/response_template.py`): it has the same fields, a
tool call is returned when its region closes, and the text of a region that the end of the completion truncates is
returned, too. There are two differences: white space at the ends of a field is removed in streams, too, and a tool call
that cannot be parsed is returned as text.
"""

import json
import sys
from types import ModuleType

FIELDS_OF_REASONING = ("reasoning_content", "reasoning", "thinking")


def replace_module(name, **members):
    """Replaces a module that transformers' parser imports but does not need for parsing completions."""
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
    return module


class Logger:
    def info(self, message):
        pass


for known in [name for name in sys.modules if name.split(".")[0] == "transformers"]:
    del sys.modules[known]
ARCHIVE = "/lib/wheel-2.whl/transformers"
replace_module("transformers", __path__=[ARCHIVE])
replace_module("transformers.utils", __path__=[f"{ARCHIVE}/utils"]).logging = replace_module(
    "transformers.utils.logging", get_logger=lambda name: Logger()
)
replace_module("transformers.utils.chat_template_utils", get_json_schema=None)

from transformers.utils.chat_parsing.response_parser import ResponseParser  # noqa: E402
from transformers.utils.chat_parsing.response_templates import load_response_template  # noqa: E402


def open_template(source):
    """Loads a response template from JSON. Raises the errors of transformers, and ValueError for fields that agents'
    APIs do not have or that cannot be streamed."""
    template = json.loads(source)
    load_response_template(template)
    fields = {name: {**field, "optional": True} for name, field in template["fields"].items()}
    if "content" not in fields and all("open" in field or "open_pattern" in field for field in fields.values()):
        fields["content"] = {}
    loaded = load_response_template({**template, "fields": fields})
    unknown = (set(fields) - {"content", "tool_calls", *FIELDS_OF_REASONING}) | (set(loaded.defaults) - {"role"})
    if unknown:
        raise ValueError(f"it has fields that agents' APIs do not have: {', '.join(sorted(unknown))}")
    for name, field in loaded.fields.items():
        if name != "tool_calls" and (field.content != "text" or field.transform is not None or field.join is not None):
            raise ValueError(f"its field {name} cannot be streamed")
        for pattern in (field.open_re, field.close_re):
            if pattern is not None:
                pattern.prepare()
    if "tool_calls" in fields and loaded.fields["tool_calls"].open_re is None:
        raise ValueError("its tool calls have no opening marker that distinguishes them from text")
    return loaded


# Python's default recursion limit. A slightly deeper recursion would exhaust WebAssembly's stack and end Python.
MAX_DEPTH = 1000


def reject_deep(text):
    """Raises ValueError for deeply nested text, which is then returned as content. Brackets in strings count as
    well."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for char in text:
        depth += (char in "[{") - (char in "]}")
        if depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply")


class RegionParser(ResponseParser):
    """A parser that adds the markup to the events of a region. The last event of a region that cannot be parsed is
    `region_malformed`."""

    def __init__(self, template, prefix, tools):
        self.region_start = self.body_start = 0
        # The prefix is not part of the response.
        self.prefix_end = sys.maxsize
        super().__init__(template, prefix=prefix, tools=tools)
        self.prefix_end = len(self._buffer)

    def get_written_text(self, start, end):
        return self._buffer[max(start, self.prefix_end) : end]

    def _open_explicit(self, events, field, found):
        super()._open_explicit(events, field, found)
        self.region_start, self.body_start = found.start(), found.end()
        events[-1]["written"] = self.get_written_text(found.start(), found.end())

    def _close_current(self, events):
        name, opened, body_end = self._current, self._opened, self.body_start + len(self._body)
        is_explicit = name != self._implicit_name
        try:
            reject_deep(self._body)
            super()._close_current(events)
        except Exception:
            self._reset_to_implicit()
            events.append({"type": "region_malformed", "field": name})
        if opened and is_explicit:
            events[-1]["whole"] = self.get_written_text(self.region_start, self._pos)
            events[-1]["written"] = self.get_written_text(body_end, self._pos)

    def count_undecided(self, parses_calls):
        """Returns the number of characters at the end that no event contains yet: an open tool call or a possible
        marker."""
        is_call = parses_calls and self._opened and self._current == "tool_calls"
        return len(self._buffer) - max(self.region_start if is_call else self._pos, self.prefix_end)


class TextField:
    """A field of the output, which removes the white space at the ends of a region. Its text arrives in chunks, so
    trailing white space is buffered."""

    def __init__(self, strips):
        self.strips = strips
        self.buffered = ""
        self.end()

    def end(self):
        """Ends a region. Its trailing white space is retained for `push_call`."""
        self.trailing, self.buffered, self.has_begun = self.buffered, "", False

    def push(self, text):
        if not self.strips:
            return text
        text = self.buffered + text if self.has_begun else text.lstrip()
        stripped = text.rstrip()
        self.buffered = text[len(stripped) :]
        self.has_begun = self.has_begun or stripped != ""
        return stripped

    def push_call(self, text):
        """Returns text that looked like a tool call, after the white space before it."""
        text = self.trailing + text
        self.trailing, self.has_begun = "", True
        return text


class CompletionParser:
    """A parser of a completion that arrives in chunks."""

    def __init__(self, template, prefix, tools):
        # Without tools, text that looks like a tool call is content, as in vLLM.
        self.parses_calls = bool(tools)
        self.regions = RegionParser(template, prefix, tools)
        self.texts = {
            name: TextField(field.content_args.get("strip", True)) for name, field in template.fields.items()
        }
        self.content = self.texts.get("content", TextField(False))
        self.to_delta(self.regions.initial_events)

    def read(self, text):
        return self.to_delta(self.regions.feed(text))

    def finish(self):
        return self.to_delta(self.regions.finalize()[1])

    def to_delta(self, events):
        delta = {"content": "", "reasoning": "", "calls": []}
        for event in events:
            if event["field"] == "tool_calls":
                self.add_call(event, delta)
            else:
                self.add_text(event, delta)
        return {name: value for name, value in delta.items() if value}

    def add_text(self, event, delta):
        text = self.texts[event["field"]]
        if event["type"] == "region_chunk":
            name = "content" if event["field"] == "content" else "reasoning"
            delta[name] += text.push(event["text"])
        elif event["type"] != "region_open":
            text.end()

    def add_call(self, event, delta):
        kind = event["type"]
        if not self.parses_calls:
            text = event["text"] if kind == "region_chunk" else event["written"]
            delta["content"] += self.content.push_call(text)
        elif kind in ("region_close", "region_malformed"):
            calls = to_calls(event.get("value"))
            if calls:
                delta["calls"] += calls
            else:
                delta["content"] += self.content.push_call(event["whole"])


def to_calls(value):
    """Returns the tool calls of a region's value; an empty list if one of its items is not a tool call."""
    values = value if isinstance(value, list) else [value]
    functions = [item.get("function") if isinstance(item, dict) else None for item in values]
    if not all(is_call(function) for function in functions):
        return []
    try:
        return [{"name": function["name"], "arguments": to_json(function["arguments"])} for function in functions]
    except (ValueError, RecursionError):
        return []


def is_call(function):
    return (
        isinstance(function, dict)
        and isinstance(function.get("name"), str)
        and function["name"] != ""
        and function.get("arguments") is not None
    )


def to_json(arguments):
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def open_completion(template, prefix, tools):
    """Returns a parser of a completion. `prefix` is the end of the prompt, `tools` a JSON list."""
    return CompletionParser(template, prefix, json.loads(tools))


def read(parser, texts, is_end):
    """Parses a JSON list of texts. Returns JSON: `deltas`, one for each text and one more at the end, and `undecided`,
    the number of characters that are not yet part of a delta."""
    deltas = [parser.read(text) for text in json.loads(texts)]
    if is_end:
        deltas.append(parser.finish())
    return json.dumps({"deltas": deltas, "undecided": 0 if is_end else parser.regions.count_undecided(parser.parses_calls)})
