"""A model's prompt encoder as its authors publish it, in place of a chat template.

The encoder is a Python file that defines one of two functions:

- `encode_messages`, which returns a text (DeepSeek V3.2, V4 and V4.1);
- `build_chat_segments`, which returns segments, each with the attributes `text` and `allow_special`: whether special tokens
  are recognized in it (Kimi K3).

It runs unmodified, once per prompt in a new module, so that it keeps no state. The process that runs this file is confined
(`encoder-process.ts`); `confine` removes Python's access to it.

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

from encoder_tracing import Tracer, rewrite
from encoder_words import find_constants, find_words
from specialize import Opaque, join
from template_messages import Damaged, Needs, convert_late_systems, find_roles, to_parts, to_template_message

# The module of an encoder's code.
MODULE = "model_encoder_code"

# Marks before a segment, as in `segments.ts`: special tokens are text, or are recognized. A segment's own unpaired surrogates
# are replaced, as tokenizers do, so that no segment contains a mark.
TEXT_MARK, SPECIAL_MARK = "\udc00", "\udc01"

# The modules that an encoder may import.
LIBRARY = (
    "__future__ abc base64 bisect collections collections.abc copy dataclasses datetime decimal enum fractions functools"
    " heapq itertools json math numbers operator re string textwrap typing unicodedata"
).split()

# The audit events that an encoder may cause: execution and definitions. All others are denied.
PERMITTED_EVENTS = frozenset(["compile", "exec", "builtins.id", "sys._getframemodulename"])

# The attributes that `dataclasses` reads and writes to describe a class.
DESCRIBED = {
    "object.__getattr__": frozenset(["__code__", "__defaults__", "__kwdefaults__"]),
    "object.__setattr__": frozenset(["__doc__"]),
}

# Modules with access to JavaScript or memory, some of which are loaded before an encoder.
BRIDGES = ("js", "pyodide_js", "pyodide", "_pyodide", "_pyodide_core", "ctypes", "_ctypes", "micropip")

# No engine accepts a longer prompt.
MAX_CHARS = 64 * 2**20

# The number of first calls that are repeated to compare their results, and the interval of repetitions after them.
REPEATED_FIRST = 8
CALLS_A_REPEAT = 64

# Content is text. Arguments are, too: what DeepSeek V4 publishes takes an object for an argument that is named so.
NEEDS = Needs(True, False, True, True, False, True, True)


class ModelEncoder:
    """Replaces a compiled template. A subclass calls one kind of entry point."""

    entry_point = None
    # The separator of a content's text parts.
    separator = "\n"

    def __init__(self, source):
        self.now = None
        self.calls = 0
        self.source = source
        self.code = compile(source, "encoder", "exec", dont_inherit=True)
        syntax_tree = ast.parse(source)
        self.words = find_words(syntax_tree, self.entry_point)
        self.parameters = find_parameters(syntax_tree, self.entry_point)
        self.constants = find_constants(syntax_tree)
        run_guarded(self.load_function)
        self.needs = find_roles(NEEDS, self.render_for_roles)

    def render_for_roles(self, messages, needs):
        """Returns the text of messages for `find_roles`, an empty one if they are rejected."""
        try:
            encoder_messages, arguments = self.build_arguments(self.prepare(messages, needs), None, True, {})
            return self.call_encoder(encoder_messages, arguments)
        except TemplateError:
            return ""

    def load_function(self):
        """Loads the function in a new module, which has run no other call."""
        module = create_module()
        exec(self.code, module.__dict__)
        return module.__dict__[self.entry_point]

    def prepare(self, messages, needs=None):
        needs = needs or self.needs
        paths = [f"messages.{at}" for at in range(len(messages))]
        prepared = [self.prepare_message(message, needs, path) for message, path in zip(messages, paths)]
        return convert_late_systems(prepared, needs)

    def prepare_message(self, message, needs, path):
        parts = to_parts(message.get("content"), f"{path}.content", needs)
        content = parts[0] if parts and isinstance(parts[0], Opaque) else self.separator.join(parts)
        return to_template_message({**message, "content": content}, needs, path)

    def render(self, messages, tools, documents, add_generation_prompt, kwargs):
        encoder_messages, arguments = self.build_arguments(messages, tools, add_generation_prompt, kwargs)
        text = self.call_encoder(encoder_messages, arguments)
        self.calls += 1
        if self.calls <= REPEATED_FIRST or self.calls % CALLS_A_REPEAT == 0:
            repeated = self.call_encoder(encoder_messages, arguments)
            check_intact(LIBRARY_STATE)
            if repeated != text:
                raise TemplateError("it returns another prompt for the same messages")
        return text

    def call_encoder(self, messages, arguments):
        text = run_guarded(lambda: self.to_text(self.load_function()(copy_value(messages), **copy_value(arguments))))
        if len(text) > MAX_CHARS:
            raise TemplateError(f"it returns more than {MAX_CHARS} characters")
        return text

    def create_tracing(self):
        """Returns this encoder for opaque contents."""
        return EncoderTrace(self)


class EncoderTrace:
    """An encoder that receives opaque values in place of contents."""

    def __init__(self, encoder):
        self.encoder = encoder
        self.code = compile(rewrite(ast.parse(encoder.source)), "encoder", "exec", dont_inherit=True)
        self.now = None
        self.conditions = {}

    def prepare(self, messages):
        return self.encoder.prepare(messages)

    def render(self, messages, tools, documents, add_generation_prompt, kwargs):
        encoder_messages, arguments = self.encoder.build_arguments(messages, tools, add_generation_prompt, kwargs)
        return run_guarded(lambda: self.encoder.to_text(self.trace(copy_value(encoder_messages), copy_value(arguments))))

    def trace(self, messages, arguments):
        module = create_module()
        tracer = Tracer(module.__dict__, self.conditions)
        exec(self.code, module.__dict__)
        tracer.is_active = True
        return module.__dict__[self.encoder.entry_point](messages, **arguments)


class TextEncoder(ModelEncoder):
    """The interface of DeepSeek's encoders."""

    entry_point = "encode_messages"

    @property
    def has_efforts(self):
        return "reasoning_effort" in self.parameters

    @property
    def separator(self):
        # DeepSeek V4 puts an empty line between parts.
        return "\n\n" if self.has_efforts else "\n"

    def to_text(self, result):
        if type(result) not in TEXTS:
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
        return add_tools(messages, tools), known


class SegmentEncoder(ModelEncoder):
    """The interface of Kimi's encoder, and of the proxy's own for Mistral (`mistral_encoder.py`)."""

    entry_point = "build_chat_segments"

    @property
    def separator(self):
        return self.constants.get("PART_SEPARATOR", "\n")

    def to_text(self, result):
        segments = [(segment.text, segment.allow_special) for segment in result]
        for text, allows_special in segments:
            if type(text) not in TEXTS or type(allows_special) is not bool:
                raise TemplateError("it returns a segment without a text and whether it allows special tokens")
        marked = [
            (SPECIAL_MARK if allows_special else TEXT_MARK) + replace_surrogates(text)
            for text, allows_special in segments
        ]
        opaque = next((text for text in marked if type(text) is Opaque), None)
        return "".join(marked) if opaque is None else join(marked, opaque._conditions)

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
        # The proxy's own encoder receives the effort of the request.
        if "reasoning_effort" in self.parameters:
            arguments["reasoning_effort"] = effort
        return messages, arguments


# What an encoder may return as a text: an opaque one if it is traced.
TEXTS = (str, Opaque)

INTERFACES = {interface.entry_point: interface for interface in (TextEncoder, SegmentEncoder)}


def replace_surrogates(text):
    """Replaces unpaired surrogates by U+FFFD. An opaque text has none: contents have none."""
    if type(text) is Opaque:
        text.check_constants()
        return text
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# The first use imports the codec, which `confine` would deny.
replace_surrogates("\ud800")


def create_module():
    module = types.ModuleType(MODULE)
    module.__dict__["__builtins__"] = BUILTINS
    return module


def find_parameters(syntax_tree, entry_point):
    for node in syntax_tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == entry_point:
            return frozenset(argument.arg for argument in [*node.args.args, *node.args.kwonlyargs])
    raise TemplateError(f"it defines no function {entry_point}")


def add_tools(messages, tools):
    """Adds the tools to the leading system message, which is created if there is none."""
    if not tools:
        return messages
    if messages and messages[0].get("role") in ("system", "developer"):
        return [{**messages[0], "tools": tools}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": tools}, *messages]


def copy_value(value):
    """Returns a copy that the encoder may change."""
    if isinstance(value, dict):
        return {name: copy_value(item) for name, item in value.items()}
    return [copy_value(item) for item in value] if isinstance(value, list) else value


def run_guarded(call):
    """Calls the encoder. Its exceptions become errors of the template, except for a lack of memory."""
    try:
        return call()
    except (MemoryError, TemplateError):
        raise
    except BaseException as error:
        check_intact(INTERPRETER_STATE)
        raise TemplateError(describe_error(error)) from None
    finally:
        check_intact(INTERPRETER_STATE)


def describe_error(error):
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return "an error that cannot be shown"


# An encoder's `builtins`.
BUILTINS = {}

# Pairs of a module's dictionary and its values: those that are checked after each call, and after some calls.
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
    """Removes everything but the standard library's computations, for the life of this interpreter."""
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
        raise TemplateError(describe_error(error)) from None
