"""Runs an encoder's code with opaque values in place of contents, to specialize it (`specialize.py`).

In calls, formatted strings, comparisons and subscripts, Python accepts only a `str` as a text. The code is rewritten so
that these expressions call the functions of `Tracer`, which support opaque values or raise Unspecializable. C code that
still receives an opaque value raises an exception, which the rewritten code never handles. Therefore the encoder takes
the same branches for all contents that meet the conditions.
"""

import ast
import copy
import string
import types

from specialize import Opaque, Unspecializable, hash_opaque, join

# The names of the functions of `Tracer` in the encoder's module. They are not valid identifiers, so code cannot use
# them.
CALL, WRITE, IS_SAME, IS_IN, GET, SET, CHECK, CATCH = (
    *("@call", "@write", "@is_same", "@is_in", "@get", "@set", "@check", "@catch"),
)

# Unsupported statements and expressions: they may handle exceptions or inspect the types of values, and are not
# rewritten.
UNSUPPORTED = (ast.With, ast.AsyncWith, ast.Match, ast.TemplateStr, ast.Await, ast.AsyncFor)
UNSUPPORTED_ATTRIBUTES = ("__class__", "__dict__")
LEAVES = (ast.Return, ast.Break, ast.Continue)


def rewrite(syntax_tree):
    return ast.fix_missing_locations(Rewriting().visit(syntax_tree))


class Rewriting(ast.NodeTransformer):
    """A transformer that replaces expressions by calls of the functions of `Tracer`. It raises Unspecializable for
    unsupported code."""

    def visit(self, node):
        if isinstance(node, UNSUPPORTED) or (isinstance(node, ast.Attribute) and node.attr in UNSUPPORTED_ATTRIBUTES):
            raise Unspecializable
        return super().visit(node)

    # Annotations are not rewritten, because contents do not occur in them.
    def visit_arg(self, node):
        return node

    def visit_AnnAssign(self, node):
        node.target = self.visit(node.target)
        node.value = node.value and self.visit(node.value)
        return node

    def visit_FunctionDef(self, node):
        returns, node.returns = node.returns, None
        self.generic_visit(node)
        node.returns = returns
        return node

    def visit_Call(self, node):
        # A call of `super` is not rewritten, because it reads the frame of its caller.
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return node
        self.generic_visit(node)
        return ast.Call(create_name(CALL), [node.func, *node.args], node.keywords)

    def visit_JoinedStr(self, node):
        self.generic_visit(node)
        return create_call(WRITE, *map(to_part, node.values))

    def visit_Compare(self, node):
        self.generic_visit(node)
        functions = [OPERATORS.get(type(operator)) for operator in node.ops]
        if not any(functions):
            return node
        if len(functions) > 1:
            raise Unspecializable
        call = create_call(functions[0], node.left, *node.comparators)
        return ast.UnaryOp(ast.Not(), call) if isinstance(node.ops[0], (ast.IsNot, ast.NotIn)) else call

    def visit_Assign(self, node):
        match node.targets:
            case [ast.Subscript(value=container, slice=key)] if not has_slice(key):
                return ast.Expr(create_call(SET, *map(self.visit, (node.value, container, key))))
        return self.generic_visit(node)

    def visit_Subscript(self, node):
        self.generic_visit(node)
        if has_slice(node.slice):
            return node
        if isinstance(node.ctx, ast.Load):
            return create_call(GET, node.value, node.slice)
        # The rewritten code evaluates the container twice, so it must not have side effects.
        if any(isinstance(inner, ast.Call) and inner.func.id != GET for inner in ast.walk(node.value)):
            raise Unspecializable
        node.slice = create_call(CHECK, copy.deepcopy(node.value), node.slice)
        return node

    def visit_Try(self, node):
        self.generic_visit(node)
        if any(isinstance(inner, LEAVES) for statement in node.finalbody for inner in ast.walk(statement)):
            raise Unspecializable
        for handler in node.handlers:
            handler.body.insert(0, ast.Expr(create_call(CATCH)))
        return node

    visit_TryStar = visit_Try


OPERATORS = {ast.Is: IS_SAME, ast.IsNot: IS_SAME, ast.In: IS_IN, ast.NotIn: IS_IN}


def create_name(name):
    return ast.Name(name, ast.Load())


def create_call(name, *arguments):
    return ast.Call(create_name(name), [*arguments], [])


def has_slice(key):
    return any(isinstance(part, ast.Slice) for part in (key, *getattr(key, "elts", ())))


def to_part(part):
    """Converts a part of a formatted string to a constant, or to a tuple of its value, conversion and format."""
    if isinstance(part, ast.Constant):
        return part
    return ast.Tuple(
        [part.value, ast.Constant(part.conversion), part.format_spec or ast.Constant("")], ast.Load()
    )


CONVERSIONS = {-1: lambda value: value, ord("s"): str, ord("r"): repr, ord("a"): ascii}

# Types whose values cannot contain an opaque value.
ATOMS = (str, int, float, complex, bool, bytes, type(None), type(...))
CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)

# Functions that do not inspect the items of their arguments, or only with operators that opaque values define.
SAFE_FUNCTIONS = (
    *(bool, list, tuple, dict, set, enumerate, zip, reversed, any, all, sorted, min, max, sum, len, iter, next, range),
    *(copy.copy, copy.deepcopy),
)
# The names of functions that read the clock.
CLOCKS = ("now", "today", "utcnow", "fromtimestamp")
# The names of functions that read the frame of their caller.
FRAME_READERS = ("globals", "locals", "vars", "dir", "eval", "exec")
# The methods of dictionaries whose first argument is a key.
KEYED_METHODS = ("get", "pop", "setdefault")


class Tracer:
    """The functions that rewritten code calls."""

    def __init__(self, names, conditions):
        """Adds the functions to `names`, the global names of the encoder's module."""
        self.names = names
        self.conditions = conditions
        # Whether the encoder has been called: while its module is executed, there are no contents.
        self.is_active = False
        functions = {CALL: self.call, WRITE: self.write, IS_SAME: is_same, IS_IN: is_in, GET: get, SET: set_item}
        names.update({**functions, CHECK: check_key, CATCH: self.catch})

    def call(self, function, /, *args, **kwargs):
        if not self.is_own(function) and getattr(function, "__name__", "") in (*CLOCKS, *FRAME_READERS):
            raise Unspecializable
        if not self.is_active or self.is_own(function):
            return function(*args, **kwargs)
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        match owner:
            case str() if name == "join" and args:
                return self.join(owner, [*args[0]])
            case str() if name == "format":
                return self.format(owner, args, kwargs)
            case dict() if name in KEYED_METHODS and args:
                key, *others = args
                return with_key(owner, key, lambda found: function(found, *others, **kwargs))
            case Opaque() | dict() | list() | set():
                return function(*args, **kwargs)
        is_opaque = bool(args) and isinstance(args[0], Opaque)
        if function is isinstance and is_opaque:
            return isinstance("", *args[1:])
        if function in (str, type) and is_opaque and len(args) == 1:
            return args[0] if function is str else str
        if function in (map, filter) and self.is_own(args[0]):
            return function(*args)
        if function in SAFE_FUNCTIONS or (is_plain(args) and is_plain(kwargs)):
            return function(*args, **kwargs)
        raise Unspecializable

    def is_own(self, function):
        """Returns whether a function or class is defined by the rewritten code."""
        function = getattr(function, "__func__", function)
        if isinstance(function, types.FunctionType):
            return function.__globals__ is self.names
        return isinstance(function, type) and function.__module__ == self.names["__name__"]

    def join(self, separator, items):
        if not any(isinstance(item, Opaque) for item in items):
            return separator.join(items)
        return join([part for item in items for part in (separator, item)][1:], self.conditions)

    def format(self, template, args, kwargs):
        if not any(isinstance(value, Opaque) for value in (*args, *kwargs.values())):
            return template.format(*args, **kwargs)
        parts, waiting = [], [*args]
        for literal, field, form, conversion in string.Formatter().parse(template):
            parts.append(literal)
            if field is None:
                continue
            if form or conversion or not (field == "" or field.isidentifier()):
                raise Unspecializable
            parts.append(write_value(kwargs[field] if field else waiting.pop(0), -1, ""))
        return self.join("", parts)

    def write(self, *parts):
        return self.join("", [part if isinstance(part, str) else write_value(*part) for part in parts])

    def catch(self):
        """Is called first in each exception handler. Raises Unspecializable, because an opaque value may have caused
        the exception."""
        if self.is_active:
            raise Unspecializable


def write_value(value, conversion, form):
    if not isinstance(value, Opaque):
        return format(CONVERSIONS[conversion](value), form)
    if form or conversion not in (-1, ord("s")):
        raise Unspecializable
    return value


def is_same(left, right):
    """Replaces the operator `is`, which is not supported for opaque values except in comparisons with None."""
    if left is None or right is None or not (isinstance(left, Opaque) or isinstance(right, Opaque)):
        return left is right
    raise Unspecializable


def is_in(item, container):
    if not isinstance(container, dict):
        return item in container
    return with_key(container, item, lambda found: found in container)


def get(container, key):
    if not isinstance(container, dict):
        return container[key]
    return with_key(container, key, lambda found: container[found])


def set_item(value, container, key):
    if isinstance(container, dict):
        with_key(container, key, lambda found: container.__setitem__(found, value))
    else:
        container[key] = value


def check_key(container, key):
    """Returns the key of a subscript. Raises Unspecializable if a key of the dictionary is opaque."""
    if isinstance(container, dict) and any(isinstance(name, Opaque) for name in (key, *container)):
        raise Unspecializable
    return key


def with_key(names, key, use):
    """Calls a function with the key of a dictionary that equals `key`, or with `key` if there is none. Opaque values
    are compared with all keys, because their hashes do not depend on their texts."""
    keys = names if isinstance(key, Opaque) else [name for name in names if isinstance(name, Opaque)]
    found = next((name for name in keys if name == key), key)
    with hash_opaque():
        return use(found)


def is_plain(value):
    """Returns whether a value certainly contains no opaque value. Other objects than collections and functions may."""
    if isinstance(value, dict):
        return is_plain([*value]) and is_plain([*value.values()])
    if type(value) in (list, tuple, set, frozenset):
        return all(map(is_plain, value))
    return type(value) in ATOMS or isinstance(value, CODE)
