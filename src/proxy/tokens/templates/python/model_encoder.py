"""A model's prompt encoder as its authors publish it, in the place of a chat template.

The encoder is a Python file that defines `encode_messages`, as DeepSeek V3.2, V4 and V4.1 have one. It runs unmodified,
once per prompt in a new module, so that it keeps no state. The process that runs this file is confined
(`encoder-process.ts`); `confine` takes away what Python itself could reach of it.

How a chat becomes the encoder's arguments is vLLM's rule (0.33, `vllm/tokenizers/deepseek_v4.py`), except that the tools
belong to the leading system message in V3.2, too, as in the examples that DeepSeek publishes with its encoder.
"""

import ast
import builtins
import gc
import sys
import types

from jinja2 import TemplateError

from encoder_words import find_words
from template_messages import Damaged, Needs, parts_of, template_message

ENTRY_POINT = "encode_messages"

# What an encoder may import, with all that belongs to it.
LIBRARY = (
    "__future__ abc base64 bisect collections collections.abc copy dataclasses datetime decimal enum fractions functools"
    " heapq itertools json math numbers operator re string textwrap typing unicodedata"
).split()

# What the interpreter reports of an encoder's doings, and what it needs for definitions. All others are denied.
PERMITTED_EVENTS = frozenset(["compile", "exec", "builtins.id", "sys._getframemodulename"])

# Modules that lead out of Python, some of which are there before an encoder is.
BRIDGES = ("js", "pyodide_js", "pyodide", "_pyodide", "_pyodide_core", "ctypes", "_ctypes", "micropip")

# More is no prompt that an engine takes.
MAX_CHARS = 64 * 2**20

# Every call is repeated until there were so many, then one in so many.
REPEATED_FIRST = 8
CALLS_A_REPEAT = 64

# Content is text. Arguments are, too: what DeepSeek V4 publishes takes an object for an argument that is named so.
NEEDS = Needs(True, False, True, True, False, True)


class ModelEncoder:
    """In the place of a compiled template."""

    needs = NEEDS

    def __init__(self, source):
        self.now = None
        self.calls = 0
        self.code = compile(source, "encoder", "exec", dont_inherit=True)
        syntax_tree = ast.parse(source)
        self.words = find_words(syntax_tree, ENTRY_POINT)
        self.parameters = parameters_of(syntax_tree)
        guarded(self.fresh)
        self.has_efforts = "reasoning_effort" in self.parameters

    def fresh(self):
        """The function, of a module that has run no other call."""
        module = types.ModuleType("model_encoder_code")
        module.__dict__["__builtins__"] = BUILTINS
        exec(self.code, module.__dict__)
        return module.__dict__[ENTRY_POINT]

    def prepared(self, messages):
        return [self.prepared_message(message, f"messages.{at}") for at, message in enumerate(messages)]

    def prepared_message(self, message, path):
        parts = parts_of(message.get("content"), f"{path}.content", NEEDS)
        # DeepSeek V4 puts an empty line between parts.
        text = ("\n\n" if self.has_efforts else "\n").join(parts)
        return template_message({**message, "content": text}, NEEDS, path)

    def render(self, messages, tools, documents, add_generation_prompt, kwargs):
        arguments = self.arguments(messages, kwargs)
        given = with_tools(messages, tools)
        text = self.called(given, arguments)
        self.calls += 1
        if self.calls <= REPEATED_FIRST or self.calls % CALLS_A_REPEAT == 0:
            repeated = self.called(given, arguments)
            check_intact(LIBRARY_STATE)
            if repeated != text:
                raise TemplateError("it returns another prompt for the same messages")
        return text

    def called(self, messages, arguments):
        text = guarded(lambda: self.fresh()(copied(messages), **arguments))
        if type(text) is not str:
            raise TemplateError(f"it returns no text, but {type(text).__name__}")
        if len(text) > MAX_CHARS:
            raise TemplateError(f"it returns more than {MAX_CHARS} characters")
        return text

    def arguments(self, messages, kwargs):
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
        return {name: value for name, value in arguments.items() if name in self.parameters}


def parameters_of(syntax_tree):
    for node in syntax_tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == ENTRY_POINT:
            return frozenset(argument.arg for argument in [*node.args.args, *node.args.kwonlyargs])
    raise TemplateError(f"it defines no function {ENTRY_POINT}")


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
    except MemoryError:
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

# Pairs of the names of a module and the identities of their values, of what every call and what some calls are checked for.
INTERPRETER_STATE = []
LIBRARY_STATE = []

# Not looked up in `builtins`, which an encoder may have changed.
identity, each = id, map


def identities(names):
    return [*each(identity, names.values())]


def check_intact(state):
    for names, before in state:
        if identities(names) != before:
            raise Damaged("it changes Python's modules")


def confine():
    """Leaves the standard library's computations. It cannot be undone in this interpreter."""
    for name in LIBRARY:
        __import__(name)
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
    INTERPRETER_STATE.extend((names, identities(names)) for names in (sys.modules, vars(builtins), vars(sys)))
    LIBRARY_STATE.extend((vars(sys.modules[name]), identities(vars(sys.modules[name]))) for name in LIBRARY)
    # As in `chat_templates.settled`.
    gc.set_threshold(100_000)
    gc.freeze()
    sys.addaudithook(deny)


def deny(event, arguments):
    if event not in PERMITTED_EVENTS:
        raise PermissionError(f"the model's code may not use {event}")


def open_encoder(source):
    confine()
    try:
        return ModelEncoder(source)
    except TemplateError:
        raise
    except BaseException as error:
        raise TemplateError(described(error)) from None
