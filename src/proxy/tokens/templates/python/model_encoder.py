"""Runs the prompt encoder that a model's authors publish in place of a chat template.

The encoder is a Python file that defines one of two functions:

- `encode_messages`, which returns a text (DeepSeek V3.2, V4 and V4.1);
- `build_chat_segments`, which returns segments with the attributes `text` and `allow_special`: whether special tokens
  are recognized in the text (Kimi K3).

The file is executed unmodified in a new module for each prompt, so that it cannot retain state. The process is confined
(`encoder-process.ts`), and `confine` removes Python's access to that process.

Chats are converted to arguments of the function as in vLLM (0.33, `vllm/tokenizers/deepseek_v4.py`,
`vllm/renderers/kimi_k3.py`), with one exception: for DeepSeek V3.2, too, tools are added to the leading system message,
as in the examples that DeepSeek publishes with its encoder.
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

# The name of the module in which an encoder's code is executed.
MODULE = "model_encoder_code"

# The marks before a segment in which special tokens are text, and before one in which they are recognized, as in
# `segments.ts`. Unpaired surrogates in segments are replaced, as tokenizers do, so that no segment contains a mark.
TEXT_MARK, SPECIAL_MARK = "\udc00", "\udc01"

# The modules that an encoder may import.
LIBRARY = (
    "__future__ abc base64 bisect collections collections.abc copy dataclasses datetime decimal enum fractions functools"
    " heapq itertools json math numbers operator re string textwrap typing unicodedata"
).split()

# The audit events that an encoder may cause, by executing code and defining classes. `deny` rejects all others.
PERMITTED_EVENTS = frozenset(["compile", "exec", "builtins.id", "sys._getframemodulename"])

# The attributes that an encoder may access in spite of an audit event, because `dataclasses` does.
DESCRIBED = {
    "object.__getattr__": frozenset(["__code__", "__defaults__", "__kwdefaults__"]),
    "object.__setattr__": frozenset(["__doc__"]),
}

# Modules that provide access to JavaScript or to raw memory. Pyodide has loaded some of them when `confine` runs.
BRIDGES = ("js", "pyodide_js", "pyodide", "_pyodide", "_pyodide_core", "ctypes", "_ctypes", "micropip")

# The maximum length of a prompt. No engine accepts a longer one.
MAX_CHARS = 64 * 2**20

# Some calls of an encoder are repeated to verify that the result depends on nothing but the messages: the first
# `REPEATED_FIRST`, and each call whose number is a multiple of `CALLS_A_REPEAT`.
REPEATED_FIRST = 8
CALLS_A_REPEAT = 64

# Content and tool arguments are passed as text: DeepSeek V4's encoder converts an object of arguments to a single
# argument named `arguments`.
NEEDS = Needs(True, False, True, True, False, True, True)


class ModelEncoder:
    """A renderer with the interface of `chat_templates.ChatTemplate`. Each subclass calls one kind of entry point."""

    entry_point = None
    # The text between the text parts of a message's content.
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
        """Renders messages for `find_roles`. Returns an empty text if the encoder rejects them."""
        try:
            encoder_messages, arguments = self.build_arguments(self.prepare(messages, needs), None, True, {})
            return self.call_encoder(encoder_messages, arguments)
        except TemplateError:
            return ""

    def load_function(self):
        """Executes the encoder's code in a new module, and returns the entry point."""
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
        """Returns a renderer that runs this encoder with opaque contents."""
        return EncoderTrace(self)


class EncoderTrace:
    """A renderer of opaque contents with the rewritten code of an encoder."""

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
    """A renderer that calls `encode_messages`, the entry point of DeepSeek's encoders."""

    entry_point = "encode_messages"

    @property
    def has_efforts(self):
        return "reasoning_effort" in self.parameters

    @property
    def separator(self):
        # DeepSeek V4's chats have an empty line between parts.
        return "\n\n" if self.has_efforts else "\n"

    def to_text(self, result):
        if type(result) not in TEXTS:
            raise TemplateError(f"it returns {type(result).__name__} instead of a text")
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
    """A renderer that calls `build_chat_segments`, the entry point of Kimi's encoder and of `mistral_encoder.py`."""

    entry_point = "build_chat_segments"

    @property
    def separator(self):
        return self.constants.get("PART_SEPARATOR", "\n")

    def to_text(self, result):
        segments = [(segment.text, segment.allow_special) for segment in result]
        for text, allows_special in segments:
            if type(text) not in TEXTS or type(allows_special) is not bool:
                raise TemplateError("it returns a segment whose text is not a str, or whose allow_special is not a bool")
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
        # `mistral_encoder.py` has a parameter for the effort as requested.
        if "reasoning_effort" in self.parameters:
            arguments["reasoning_effort"] = effort
        return messages, arguments


# The types of the texts that an encoder returns; `Opaque` only if it renders opaque contents.
TEXTS = (str, Opaque)

INTERFACES = {interface.entry_point: interface for interface in (TextEncoder, SegmentEncoder)}


def replace_surrogates(text):
    """Replaces unpaired surrogates by U+FFFD. For an opaque text, whose contents have none, only checks the constants."""
    if type(text) is Opaque:
        text.check_constants()
        return text
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# The first use imports the codec, which `confine` would deny.
replace_surrogates("\ud800")


def create_module():
    """Returns an empty module for an encoder's code."""
    module = types.ModuleType(MODULE)
    module.__dict__["__builtins__"] = BUILTINS
    return module


def find_parameters(syntax_tree, entry_point):
    """Returns the names of the entry point's parameters. Raises TemplateError if the code does not define it."""
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
    """Calls a function that runs the encoder's code. Exceptions except MemoryError are converted to TemplateError;
    Damaged is raised if the code has changed Python's modules."""
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


# The `builtins` of an encoder's module.
BUILTINS = {}

# Pairs of a module's dictionary and its original values. The first list is checked after each call, the second after
# each repeated call.
INTERPRETER_STATE = []
LIBRARY_STATE = []

# References to functions that an encoder could replace in `builtins` and `operator`.
is_same, each, holds_for_all, size = is_, map, all, len


def check_intact(state):
    """Raises Damaged if a value of a module was replaced. Values are compared by identity, because an object of an
    encoder can claim to be equal to any other; the original values stay referenced, so that no new object has the
    identity of a deleted one. The loop runs in C, because more than 500 values are compared for each prompt."""
    for names, before in state:
        if size(names) != size(before) or not holds_for_all(each(is_same, names.values(), before)):
            raise Damaged("it changes Python's modules")


def confine():
    """Restricts this interpreter to computations with modules of the standard library. This cannot be undone."""
    for name in LIBRARY:
        __import__(name)
    # `dataclasses` looks up the names in a class's annotations in the module named `MODULE`.
    sys.modules[MODULE] = types.ModuleType(MODULE)
    sys.modules[MODULE].__dict__["__builtins__"] = BUILTINS
    load = builtins.__import__
    for name in [name for name in sys.modules if name.split(".")[0] in BRIDGES]:
        del sys.modules[name]
    for finder in sys.meta_path:
        # Only Pyodide's finder, which imports JavaScript objects, has the attribute `jsproxies`.
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
    # Collects garbage rarely, and not at all among existing objects, as `chat_templates.freeze_objects` does.
    gc.set_threshold(100_000)
    gc.freeze()
    sys.addaudithook(deny)


def deny(event, arguments):
    """Raises PermissionError for an event that an encoder may not cause. Python calls this audit hook."""
    if event in DESCRIBED and arguments[1] in DESCRIBED[event]:
        return
    if event not in PERMITTED_EVENTS:
        raise PermissionError(f"the model's code may not use {event}")


def open_encoder(source, entry_point):
    """Confines this interpreter and opens an encoder. `entry_point` is a key of `INTERFACES`."""
    confine()
    try:
        return INTERFACES[entry_point](source)
    except TemplateError:
        raise
    except BaseException as error:
        raise TemplateError(describe_error(error)) from None
