"""Specializes a template to messages of one shape: computes its text for all contents that meet certain conditions.

The template is rendered once with opaque values in place of contents. An opaque value can be written, joined, stripped
and compared. The result of a comparison (does it start with this text?) is that of the sample, and is recorded as a
condition. Every other operation, including operations in C code, raises an exception because the value is not a `str`,
and the template is not specialized. Therefore, if other contents meet the conditions, the template takes the same
branches and writes the same constant texts.
"""

import contextlib
import functools
import json
from typing import NamedTuple

from jinja2.compiler import CodeGenerator
from jinja2.defaults import DEFAULT_TESTS
from markupsafe import soft_str


class Unspecializable(BaseException):
    """Raised if a template cannot be specialized. Not an `Exception`, because Jinja2 treats some exceptions as a
    missing value."""


class Slot(NamedTuple):
    """A placeholder for a content whose ends have been stripped."""

    # The index of the content, or `CLOCK`.
    index: int
    # The strips in their order: pairs of a side, `l` or `r`, and the removed characters (None: white space), or of `last`
    # and the number of last characters that remain.
    strips: tuple
    # The sample's content after these strips.
    text: str


# The index of the date, which is not a content.
CLOCK = -1


class Opaque:
    """A text that consists of constant texts and slots."""

    __slots__ = ("_pieces", "_conditions")

    def __init__(self, pieces, conditions):
        self._pieces = [piece for piece in pieces if piece != ""]
        self._conditions = conditions

    def __add__(self, other):
        return join([self, other], self._conditions)

    def __radd__(self, other):
        return join([other, self], self._conditions)

    def __bool__(self):
        if any(isinstance(piece, str) for piece in self._pieces):
            return True
        return bool(self._pieces) and not self._test("equals", "")

    def __eq__(self, other):
        if isinstance(other, Opaque):
            return self is other or test_same(self._get_slot(), other._get_slot(), self._conditions)
        return isinstance(other, str) and self._test("equals", other)

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        if not HASHES:
            raise Unspecializable
        return 0

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __getitem__(self, key):
        """Returns the last characters. Raises Unspecializable for any other part."""
        match key:
            case slice(start=int(start), stop=None, step=None) if start < 0:
                slot = self._get_slot()
                return Opaque([slot._replace(strips=(*slot.strips, ("last", -start)), text=slot.text[start:])], self._conditions)
        raise Unspecializable

    def __contains__(self, text):
        return self._test("contains", text)

    def startswith(self, text):
        return self._test_any("starts", text)

    def endswith(self, text):
        return self._test_any("ends", text)

    def split(self, separator):
        if separator == "" or self._test("contains", separator):
            raise Unspecializable
        return [self]

    def replace(self, text, other):
        if text == "" or self._test("contains", text):
            raise Unspecializable
        return self

    def strip(self, characters=None):
        return self.lstrip(characters).rstrip(characters)

    def lstrip(self, characters=None):
        return self._strip_end("l", 0, characters)

    def rstrip(self, characters=None):
        return self._strip_end("r", -1, characters)

    def _strip_end(self, side, end, characters):
        # `specialization.ts` strips UTF-16 code units, which are equal to these characters below U+D800 only.
        if characters is not None and any(ord(character) >= 0xD800 for character in characters):
            raise Unspecializable
        pieces = list(self._pieces)
        while pieces:
            piece = pieces[end]
            if isinstance(piece, Slot):
                text = strip_end(piece.text, side, characters)
                pieces[end] = Slot(piece.index, (*piece.strips, (side, characters)), text)
                # If the slot is empty, the next piece must be stripped as well, which is not supported.
                if len(pieces) > 1 and test_slot(pieces[end], "equals", "", self._conditions):
                    raise Unspecializable
                break
            pieces[end] = strip_end(piece, side, characters)
            if pieces[end] != "":
                break
            pieces.pop(end)
        return Opaque(pieces, self._conditions)

    def _test_any(self, kind, texts):
        return any(self._test(kind, text) for text in (texts if isinstance(texts, tuple) else (texts,)))

    def _test(self, kind, text):
        if type(text) is not str:
            raise Unspecializable
        return test_slot(self._get_slot(), kind, text, self._conditions)

    def check_constants(self):
        """Raises UnicodeEncodeError if a constant text contains an unpaired surrogate."""
        for piece in self._pieces:
            if isinstance(piece, str):
                piece.encode()

    def _get_slot(self):
        if len(self._pieces) != 1 or not isinstance(self._pieces[0], Slot):
            raise Unspecializable
        return self._pieces[0]


# The list is not empty while opaque values are hashable. All of them have the same hash, so that they are compared with
# every other key.
HASHES = []


@contextlib.contextmanager
def hash_opaque():
    HASHES.append(True)
    try:
        yield
    finally:
        HASHES.pop()


def strip_end(text, side, characters):
    return text.lstrip(characters) if side == "l" else text.rstrip(characters)


PREDICATES = {
    "equals": lambda text, other: text == other,
    "contains": lambda text, other: other in text,
    "starts": lambda text, other: text.startswith(other),
    "ends": lambda text, other: text.endswith(other),
}


def test_slot(slot, kind, text, conditions):
    """Returns the result of a comparison for the sample, and records it as a condition."""
    if slot.index == CLOCK:
        raise Unspecializable
    # `encode` raises an exception for an unpaired surrogate, which JavaScript would also find inside a surrogate pair.
    text.encode()
    holds = PREDICATES[kind](slot.text, text)
    conditions[json.dumps([slot.index, slot.strips, kind, text, holds])] = None
    return holds


def test_same(slot, other, conditions):
    """Returns whether two slots are equal in the sample, and records the result as a condition."""
    if CLOCK in (slot.index, other.index):
        raise Unspecializable
    holds = slot.text == other.text
    conditions[json.dumps([slot.index, slot.strips, "same", [other.index, other.strips], holds])] = None
    return holds


def join(values, conditions):
    pieces = []
    for value in values:
        if isinstance(value, Opaque):
            pieces += value._pieces
        elif type(value) is str:
            pieces.append(value)
        else:
            raise Unspecializable
    return Opaque(pieces, conditions)


def raise_unspecializable(*args, **kwargs):
    raise Unspecializable


# Python looks up operators on the class. For a missing operator, it would raise a TypeError, which Jinja2 treats as a
# missing value.
SUPPORTED = {*vars(Opaque), *dir(type), *dir(object)} - {"__lt__", "__le__", "__gt__", "__ge__"}
SUPPORTED -= {"__str__", "__repr__", "__format__", "__reduce__", "__reduce_ex__", "__call__"}
for name in {*dir(str), *dir(int), "__getattr__", "__html__"} - SUPPORTED:
    setattr(Opaque, name, raise_unspecializable)

METHODS = ("startswith", "endswith", "split", "replace", "strip", "lstrip", "rstrip")


class TracingCode(CodeGenerator):
    """A generator of code that writes and joins values without converting them to `str`."""

    def _output_child_pre(self, node, frame, finalize):
        self.write("environment.to_output(")

    def visit_Concat(self, node, frame):
        self.write("environment.concat(map(environment.to_output, (")
        for argument in node.nodes:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")))")


class Tracing:
    """A mixin for sandboxes that render opaque values."""

    code_generator_class = TracingCode

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.filters = {
            name: function if name in SAFE_FILTERS else guard(function)
            for name, function in self.filters.items()
        } | FILTERS
        self.globals["lipsum"] = raise_unspecializable
        self.tests = {
            name: function if name in SAFE_TESTS else guard(function) for name, function in self.tests.items()
        } | TESTS

    def to_output(self, value):
        return value if isinstance(value, Opaque) else str(value)

    def concat(self, values):
        values = list(values)
        opaque = next((value for value in values if isinstance(value, Opaque)), None)
        return "".join(values) if opaque is None else join(values, opaque._conditions)

    def getattr(self, obj, attribute):
        if not isinstance(obj, Opaque):
            return super().getattr(obj, attribute)
        if attribute not in METHODS:
            raise Unspecializable
        return getattr(obj, attribute)

    def getitem(self, obj, argument):
        if isinstance(obj, Opaque) or isinstance(argument, Opaque):
            raise Unspecializable
        return super().getitem(obj, argument)


def guard(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        if any(isinstance(value, Opaque) for value in (*args, *kwargs.values())):
            raise Unspecializable
        return function(*args, **kwargs)

    return call


def to_text(value):
    return value if isinstance(value, Opaque) else soft_str(value)


FILTERS = {
    "string": to_text,
    "trim": lambda value, chars=None: to_text(value).strip(chars),
    # The results of `random` differ between renderings, as those of `lipsum` do.
    "random": raise_unspecializable,
}

# These filters check at most whether a text is empty.
SAFE_FILTERS = {"default", "d"}

# The results of these tests do not depend on the text, or are computed by methods of `Opaque`.
SAFE_TESTS = {
    *("defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "mapping"),
    *("eq", "equalto", "==", "ne", "!=", "in"),
}


def accept_opaque(test):
    """Returns a test that accepts opaque values, because the original accepts every text."""
    return lambda value: isinstance(value, Opaque) or test(value)


TESTS = {name: accept_opaque(DEFAULT_TESTS[name]) for name in ("string", "iterable", "sequence")}


def put_slots(messages, paths, conditions):
    """Replaces the texts at these paths by opaque values."""
    for index, path in enumerate(paths):
        *steps, last = path
        holder = functools.reduce(lambda value, step: value[step], steps, messages)
        holder[last] = Opaque([Slot(index, (), holder[last])], conditions)


def to_specialization(text, conditions):
    """Returns the fields of `Specialization` in `specialization.ts`."""
    pieces = text._pieces if isinstance(text, Opaque) else [text]
    written = [[piece.index, piece.strips] if isinstance(piece, Slot) else piece for piece in pieces]
    return {"pieces": written, "conditions": [json.loads(one) for one in conditions]}
