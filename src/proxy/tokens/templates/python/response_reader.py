"""Parses responses by a model's `response_template`, with transformers' own parser.

The output follows vLLM's adapter of the same parser (`vllm/parser/response_template.py`): its fields, tool calls when their
regions close, and the text of a region that the end of the response truncates. Unlike there, white space at the ends of a
field is removed in streams, too, and a call that cannot be parsed is returned as text.
"""

import json
import sys
from types import ModuleType

FIELDS_OF_REASONING = ("reasoning_content", "reasoning", "thinking")


def replace_module(name, **members):
    """Replaces a module that transformers' parser imports, but does not need for responses."""
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
    """Raises the errors of transformers, and ValueError for fields that agents' APIs do not have."""
    template = json.loads(source)
    load_response_template(template)
    fields = {name: {**field, "optional": True} for name, field in template["fields"].items()}
    if "content" not in fields and all("open" in field or "open_pattern" in field for field in fields.values()):
        fields["content"] = {}
    loaded = load_response_template({**template, "fields": fields})
    unknown = (set(fields) - {"content", "tool_calls", *FIELDS_OF_REASONING}) | (set(loaded.defaults) - {"role"})
    if unknown:
        raise ValueError(f"it has fields that agents do not know: {', '.join(sorted(unknown))}")
    for name, field in loaded.fields.items():
        if name != "tool_calls" and (field.content != "text" or field.transform is not None or field.join is not None):
            raise ValueError(f"its field {name} cannot be streamed")
        for pattern in (field.open_re, field.close_re):
            if pattern is not None:
                pattern.prepare()
    if "tool_calls" in fields and loaded.fields["tool_calls"].open_re is None:
        raise ValueError("its calls begin with nothing that tells them from text")
    return loaded


# Python's own limit; WebAssembly's stack ends a little later, and Python with it.
MAX_DEPTH = 1000


def refuse_deep(text):
    """Rejects deeply nested text. Brackets in strings count as well; a rejected text is returned as content."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for char in text:
        depth += (char in "[{") - (char in "]}")
        if depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply")


class Regions(ResponseParser):
    """Adds the text of a region to its events. A region that cannot be parsed ends in `region_malformed`."""

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
            refuse_deep(self._body)
            super()._close_current(events)
        except Exception:
            self._reset_to_implicit()
            events.append({"type": "region_malformed", "field": name})
        if opened and is_explicit:
            events[-1]["whole"] = self.get_written_text(self.region_start, self._pos)
            events[-1]["written"] = self.get_written_text(body_end, self._pos)

    def count_undecided(self, takes_calls):
        """Returns the number of last characters that are not reported yet: an unfinished call, or a possible marker."""
        is_call = takes_calls and self._opened and self._current == "tool_calls"
        return len(self._buffer) - max(self.region_start if is_call else self._pos, self.prefix_end)


class TextField:
    """Removes the white space at the ends of a region, whose text arrives in chunks."""

    def __init__(self, strips):
        self.strips = strips
        self.held = ""
        self.end()

    def end(self):
        self.behind, self.held, self.has_begun = self.held, "", False

    def push(self, text):
        if not self.strips:
            return text
        text = self.held + text if self.has_begun else text.lstrip()
        solid = text.rstrip()
        self.held = text[len(solid) :]
        self.has_begun = self.has_begun or solid != ""
        return solid

    def push_call(self, text):
        """Adds text that looked like a call, and the white space around it."""
        text = self.behind + text
        self.behind, self.has_begun = "", True
        return text


class Answer:
    """A response that arrives in chunks."""

    def __init__(self, template, prefix, tools):
        # Without tools, text that looks like a call is content, as in vLLM.
        self.takes_calls = bool(tools)
        self.regions = Regions(template, prefix, tools)
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
        if not self.takes_calls:
            text = event["text"] if kind == "region_chunk" else event["written"]
            delta["content"] += self.content.push_call(text)
        elif kind in ("region_close", "region_malformed"):
            calls = to_calls(event.get("value"))
            if calls:
                delta["calls"] += calls
            else:
                delta["content"] += self.content.push_call(event["whole"])


def to_calls(value):
    """Returns the calls of a region; an empty list if one of them is not a call."""
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


def open_answer(template, prefix, tools):
    return Answer(template, prefix, json.loads(tools))


def read(answer, texts, is_end):
    """`texts` is a JSON list. Returns JSON: a delta of each, that of the end, and the number of undecided characters."""
    deltas = [answer.read(text) for text in json.loads(texts)]
    if is_end:
        deltas.append(answer.finish())
    return json.dumps({"deltas": deltas, "undecided": 0 if is_end else answer.regions.count_undecided(answer.takes_calls)})
