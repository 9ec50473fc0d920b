"""A model's prompt encoder as its authors publish it, in the place of a chat template.

The encoder is a Python file that defines one of two functions:

- `encode_messages`, which returns a text (DeepSeek V3.2, V4 and V4.1);
- `build_chat_segments`, which returns segments, each with the attributes `text` and `allow_special`: whether special tokens
  are recognized in it (Kimi K3).

It runs unmodified, once per prompt in a new module, so that it keeps no state. The process that runs this file is confined
(`encoder-process.ts`); `confine` takes away what Python itself could reach of it.

How a chat becomes the function's arguments is vLLM's rule (0.33, `vllm/tokenizers/deepseek_v4.py`,
`vllm/renderers/kimi_k3.py`), except that the tools belong to the leading system message in V3.2, too, as in the examples
that DeepSeek publishes with its encoder.
"""

import ast
import builtins
import gc
import sys
import types
from operator import is_

from jinja2 import TemplateError

from encoder_words import find_constants, find_words
from template_messages import Damaged, Needs, find_roles, template_message, to_parts, with_late_systems

# The module of an encoder's code.
MODULE = "model_encoder_code"

# Marks before a segment, as in `segments.ts`: special tokens are text, or are recognized. A segment's own unpaired surrogates
# are replaced, as tokenizers do, so that no segment contains a mark.
TEXT_MARK, SPECIAL_MARK = "\udc00", "\udc01"

# What an encoder may import, with all that belongs to it.
LIBRARY = (
    "__future__ abc base64 bisect collections collections.abc copy dataclasses datetime decimal enum fractions functools"
    " heapq itertools json math numbers operator re string textwrap typing unicodedata"
).split()

# What the interpreter reports of an encoder's doings, and what it needs for definitions. All others are denied.
PERMITTED_EVENTS = frozenset(["compile", "exec", "builtins.id", "sys._getframemodulename"])

# The attributes that `dataclasses` reads and writes to describe a class.
DESCRIBED = {
    "object.__getattr__": frozenset(["__code__", "__defaults__", "__kwdefaults__"]),
    "object.__setattr__": frozenset(["__doc__"]),
}

# Modules that lead out of Python, some of which are there before an encoder is.
BRIDGES = ("js", "pyodide_js", "pyodide", "_pyodide", "_pyodide_core", "ctypes", "_ctypes", "micropip")

# More is no prompt that an engine takes.
MAX_CHARS = 64 * 2**20

# Every call is repeated until there were so many, then one in so many.
REPEATED_FIRST = 8
CALLS_A_REPEAT = 64

# Content is text. Arguments are, too: what DeepSeek V4 publishes takes an object for an argument that is named so.
NEEDS = Needs(True, False, True, True, False, True, True)


class ModelEncoder:
    """In the place of a compiled template. A subclass is the interface of one function."""

    entry_point = None
    # Between the text parts of a content.
    separator = "\n"

    def __init__(self, source):
        self.now = None
        self.calls = 0
        self.code = compile(source, "encoder", "exec", dont_inherit=True)
        syntax_tree = ast.parse(source)
        self.words = find_words(syntax_tree, self.entry_point)
        self.parameters = find_parameters(syntax_tree, self.entry_point)
        self.constants = find_constants(syntax_tree)
        guarded(self.fresh)
        self.needs = find_roles(NEEDS, self.shown)

    def shown(self, messages, needs):
        """The text of messages for `find_roles`."""
        try:
            encoder_messages, arguments = self.build_arguments(self.prepared(messages, needs), None, True, {})
            return self.called(encoder_messages, arguments)
        except TemplateError:
            return ""

    def fresh(self):
        """The function, of a module that has run no other call."""
        module = types.ModuleType(MODULE)
        module.__dict__["__builtins__"] = BUILTINS
        exec(self.code, module.__dict__)
        return module.__dict__[self.entry_point]

    def prepared(self, messages, needs=None):
        needs = needs or self.needs
        paths = [f"messages.{at}" for at in range(len(messages))]
        prepared = [self.prepared_message(message, needs, path) for message, path in zip(messages, paths)]
        return with_late_systems(prepared, needs)

    def prepared_message(self, message, needs, path):
        parts = to_parts(message.get("content"), f"{path}.content", needs)
        return template_message({**message, "content": self.separator.join(parts)}, needs, path)

    def render(self, messages, tools, documents, add_generation_prompt, kwargs):
        encoder_messages, arguments = self.build_arguments(messages, tools, add_generation_prompt, kwargs)
        text = self.called(encoder_messages, arguments)
        self.calls += 1
        if self.calls <= REPEATED_FIRST or self.calls % CALLS_A_REPEAT == 0:
            repeated = self.called(encoder_messages, arguments)
            check_intact(LIBRARY_STATE)
            if repeated != text:
                raise TemplateError("it returns another prompt for the same messages")
        return text

    def called(self, messages, arguments):
        text = guarded(lambda: self.to_text(self.fresh()(copied(messages), **copied(arguments))))
        if len(text) > MAX_CHARS:
            raise TemplateError(f"it returns more than {MAX_CHARS} characters")
        return text


class TextEncoder(ModelEncoder):
    """DeepSeek's."""

    entry_point = "encode_messages"

    @property
    def has_efforts(self):
        return "reasoning_effort" in self.parameters

    @property
    def separator(self):
        # DeepSeek V4 puts an empty line between parts.
        return "\n\n" if self.has_efforts else "\n"

    def to_text(self, result):
        if type(result) is not str:
            raise TemplateError(f"it returns no text, but {type(result).__name__}")
        return result

    def build_arguments(self, messages, tools, add_generation_prompt, kwargs):
        """Returns the messages and the keyword arguments for the encoder's function."""
        effort = kwargs.get("reasoning_effort")
        thinks = kwargs.get("thinking") or kwargs.get("enable_thinking")
        if "thinking" not in kwargs and "enable_thinking" not in kwargs:
            thinks = self.has_efforts
        arguments = {"thinking_mode": "thinking" if thinks and effort != "none" else "chat"}
        if self.has_efforts and effort not in (None, "none"):
            arguments["reasoning_effort"] = effort
        if "drop_thinking" in kwargs:
            arguments["drop_thinking"] = kwargs["drop_thinking"]
        elif not self.has_efforts:
            arguments["drop_thinking"] = bool(messages) and messages[-1].get("role") == "user"
        known = {name: value for name, value in arguments.items() if name in self.parameters}
        return with_tools(messages, tools), known


class SegmentEncoder(ModelEncoder):
    """Kimi's, and the proxy's own for Mistral (`mistral_encoder.py`)."""

    entry_point = "build_chat_segments"

    @property
    def separator(self):
        return self.constants.get("PART_SEPARATOR", "\n")

    def to_text(self, result):
        segments = [(segment.text, segment.allow_special) for segment in result]
        for text, allows_special in segments:
            if type(text) is not str or type(allows_special) is not bool:
                raise TemplateError("it returns a segment without a text and whether it allows special tokens")
        return "".join(
            (SPECIAL_MARK if allows_special else TEXT_MARK) + without_surrogates(text)
            for text, allows_special in segments
        )

    def build_arguments(self, messages, tools, add_generation_prompt, kwargs):
        """Returns the messages and the keyword arguments for the encoder's function."""
        effort = kwargs.get("reasoning_effort")
        thinks = kwargs.get("thinking", kwargs.get("enable_thinking", effort != "none"))
        arguments = {
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "thinking": bool(thinks),
            # Without an effort, Kimi K3's `apply_chat_template` passes the highest one.
            "thinking_effort": kwargs.get("thinking_effort", "max" if effort in (None, "none") else effort),
        }
        # As the request has it, for the proxy's own encoder.
        if "reasoning_effort" in self.parameters:
            arguments["reasoning_effort"] = effort
        return messages, arguments


INTERFACES = {interface.entry_point: interface for interface in (TextEncoder, SegmentEncoder)}


def without_surrogates(text):
    """The text with U+FFFD in the place of unpaired surrogates."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# The first use imports the codec, which `confine` would deny.
without_surrogates("\ud800")


def find_parameters(syntax_tree, entry_point):
    for node in syntax_tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == entry_point:
            return frozenset(argument.arg for argument in [*node.args.args, *node.args.kwonlyargs])
    raise TemplateError(f"it defines no function {entry_point}")


def with_tools(messages, tools):
    """The tools belong to the leading system message, which is made up if there is none."""
    if not tools:
        return messages
    if messages and messages[0].get("role") in ("system", "developer"):
        return [{**messages[0], "tools": tools}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": tools}, *messages]


def copied(value):
    """A copy that the encoder may change."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def guarded(call):
    """What the encoder raises becomes an error of the template, unless it is a lack of memory."""
    try:
        return call()
    except (MemoryError, TemplateError):
        raise
    except BaseException as error:
        check_intact(INTERPRETER_STATE)
        raise TemplateError(described(error)) from None
    finally:
        check_intact(INTERPRETER_STATE)


def described(error):
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return "an error that cannot be shown"


# What an encoder sees in the place of `builtins`.
BUILTINS = {}

# Pairs of the names of a module and their values, of what every call and what some calls are checked for.
INTERPRETER_STATE = []
LIBRARY_STATE = []

# Not looked up in `builtins` and `operator`, which an encoder may have changed.
is_same, each, holds_for_all, size = is_, map, all, len


def check_intact(state):
    """Compares identities, because an encoder's value could be equal to any other. The values are kept, so that none of
    them has the identity of a deleted one. The loop runs in C: more than 500 values are compared for each prompt."""
    for names, before in state:
        if size(names) != size(before) or not holds_for_all(each(is_same, names.values(), before)):
            raise Damaged("it changes Python's modules")


def confine():
    """Leaves the standard library's computations. It cannot be undone in this interpreter."""
    for name in LIBRARY:
        __import__(name)
    # Where `dataclasses` looks up the names in a class's annotations.
    sys.modules[MODULE] = types.ModuleType(MODULE)
    sys.modules[MODULE].__dict__["__builtins__"] = BUILTINS
    load = builtins.__import__
    for name in [name for name in sys.modules if name.split(".")[0] in BRIDGES]:
        del sys.modules[name]
    for finder in sys.meta_path:
        # Pyodide's finder of JavaScript objects.
        getattr(finder, "jsproxies", {}).clear()

    def import_listed(name, globals=None, locals=None, fromlist=(), level=0):
        if level or name not in LIBRARY:
            raise ImportError(f"the model's code may not import {name}")
        return load(name, globals, locals, fromlist, level)

    BUILTINS.update(vars(builtins))
    BUILTINS["__import__"] = import_listed
    for name in ("open", "input", "breakpoint", "help", "exit", "quit"):
        BUILTINS.pop(name, None)
    INTERPRETER_STATE.extend((names, [*names.values()]) for names in (sys.modules, vars(builtins), vars(sys)))
    LIBRARY_STATE.extend((vars(sys.modules[name]), [*vars(sys.modules[name]).values()]) for name in (*LIBRARY, MODULE))
    # As in `chat_templates.settled`.
    gc.set_threshold(100_000)
    gc.freeze()
    sys.addaudithook(deny)


def deny(event, arguments):
    if event in DESCRIBED and arguments[1] in DESCRIBED[event]:
        return
    if event not in PERMITTED_EVENTS:
        raise PermissionError(f"the model's code may not use {event}")


def open_encoder(source, entry_point):
    """@param entry_point the function that the source defines, one of `INTERFACES`"""
    confine()
    try:
        return INTERFACES[entry_point](source)
    except TemplateError:
        raise
    except BaseException as error:
        raise TemplateError(described(error)) from None
