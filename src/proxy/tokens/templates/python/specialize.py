"""Specializes a template to messages of one shape: the text that it writes for any contents that meet some conditions.

The template is rendered once with opaque values in place of contents. An opaque value supports only what is listed
here: it can be written, joined and stripped, and a question about it (does it start with this text?) is answered by
the sample and recorded as a condition. Every other operation, also one of C code, raises an exception, because the
value is not a `str`; the template is then not specialized. So if the conditions hold for other contents, the template
takes the same path, and writes the same pieces.
"""

import contextlib
import functools
import json
from typing import NamedTuple

from jinja2.compiler import CodeGenerator
from jinja2.defaults import DEFAULT_TESTS
from markupsafe import soft_str


class Unspecializable(BaseException):
    """Not an `Exception`, because Jinja2 treats some of these as a missing value."""


class Slot(NamedTuple):
    """A content, after characters have been removed from its ends."""

    index: int
    # Pairs of `l` or `r` and the characters, None: white space; or of `last` and the number of characters that are left.
    strips: tuple
    # The sample's text.
    text: str


# The date, which is no content.
CLOCK = -1


class Opaque:
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
        return bool(self._pieces) and not self._ask("equals", "")

    def __eq__(self, other):
        if isinstance(other, Opaque):
            return self is other or ask_same(self._get_slot(), other._get_slot(), self._conditions)
        return isinstance(other, str) and self._ask("equals", other)

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
        """Returns the last characters. Any other part is refused."""
        match key:
            case slice(start=int(start), stop=None, step=None) if start < 0:
                slot = self._get_slot()
                return Opaque([slot._replace(strips=(*slot.strips, ("last", -start)), text=slot.text[start:])], self._conditions)
        raise Unspecializable

    def __contains__(self, text):
        return self._ask("contains", text)

    def startswith(self, text):
        return self._ask_any("starts", text)

    def endswith(self, text):
        return self._ask_any("ends", text)

    def split(self, separator):
        if separator == "" or self._ask("contains", separator):
            raise Unspecializable
        return [self]

    def replace(self, text, other):
        if text == "" or self._ask("contains", text):
            raise Unspecializable
        return self

    def strip(self, characters=None):
        return self.lstrip(characters).rstrip(characters)

    def lstrip(self, characters=None):
        return self._strip_end("l", 0, characters)

    def rstrip(self, characters=None):
        return self._strip_end("r", -1, characters)

    def _strip_end(self, side, end, characters):
        # JavaScript's strings have units of 16 bits.
        if characters is not None and any(ord(character) >= 0xD800 for character in characters):
            raise Unspecializable
        pieces = list(self._pieces)
        while pieces:
            piece = pieces[end]
            if isinstance(piece, Slot):
                text = strip_end(piece.text, side, characters)
                pieces[end] = Slot(piece.index, (*piece.strips, (side, characters)), text)
                # If nothing of it is left, the next piece is stripped, too.
                if len(pieces) > 1 and ask(pieces[end], "equals", "", self._conditions):
                    raise Unspecializable
                break
            pieces[end] = strip_end(piece, side, characters)
            if pieces[end] != "":
                break
            pieces.pop(end)
        return Opaque(pieces, self._conditions)

    def _ask_any(self, kind, texts):
        return any(self._ask(kind, text) for text in (texts if isinstance(texts, tuple) else (texts,)))

    def _ask(self, kind, text):
        if type(text) is not str:
            raise Unspecializable
        return ask(self._get_slot(), kind, text, self._conditions)

    def check_constants(self):
        """@throws UnicodeEncodeError if a constant piece has an unpaired surrogate"""
        for piece in self._pieces:
            if isinstance(piece, str):
                piece.encode()

    def _get_slot(self):
        if len(self._pieces) != 1 or not isinstance(self._pieces[0], Slot):
            raise Unspecializable
        return self._pieces[0]


# Not empty while opaque values have a hash, which is that of all of them: they must then be compared with every other key.
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


ANSWERS = {
    "equals": lambda text, other: text == other,
    "contains": lambda text, other: other in text,
    "starts": lambda text, other: text.startswith(other),
    "ends": lambda text, other: text.endswith(other),
}


def ask(slot, kind, text, conditions):
    if slot.index == CLOCK:
        raise Unspecializable
    # JavaScript would find half of a surrogate pair in a text; this raises an exception for it.
    text.encode()
    holds = ANSWERS[kind](slot.text, text)
    conditions[json.dumps([slot.index, slot.strips, kind, text, holds])] = None
    return holds


def ask_same(slot, other, conditions):
    """Returns whether two contents are equal."""
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


def refuse(*args, **kwargs):
    raise Unspecializable


# Python looks for operators on the class. A missing one would raise a TypeError, which Jinja2 treats as a missing value.
SUPPORTED = {*vars(Opaque), *dir(type), *dir(object)} - {"__lt__", "__le__", "__gt__", "__ge__"}
SUPPORTED -= {"__str__", "__repr__", "__format__", "__reduce__", "__reduce_ex__", "__call__"}
for name in {*dir(str), *dir(int), "__getattr__", "__html__"} - SUPPORTED:
    setattr(Opaque, name, refuse)

METHODS = ("startswith", "endswith", "split", "replace", "strip", "lstrip", "rstrip")


class TracingCode(CodeGenerator):
    """Writes and joins values without a conversion to `str`."""

    def _output_child_pre(self, node, frame, finalize):
        self.write("environment.to_output(")

    def visit_Concat(self, node, frame):
        self.write("environment.concat(map(environment.to_output, (")
        for argument in node.nodes:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")))")


class Tracing:
    """What a sandbox does with opaque values."""

    code_generator_class = TracingCode

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.filters = {
            name: function if name in SAFE_FILTERS else guard(function)
            for name, function in self.filters.items()
        } | FILTERS
        self.globals["lipsum"] = refuse
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
    # A text that changes with each rendering, as that of `lipsum`, is not known from one of them.
    "random": refuse,
}

# At most, the filter checks whether a text is empty.
SAFE_FILTERS = {"default", "d"}

# The result of these tests does not depend on the text, or the opaque value computes it.
SAFE_TESTS = {
    *("defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "mapping"),
    *("eq", "equalto", "==", "ne", "!=", "in"),
}


def accept_opaque(test):
    """A test that holds for every text."""
    return lambda value: isinstance(value, Opaque) or test(value)


TESTS = {name: accept_opaque(DEFAULT_TESTS[name]) for name in ("string", "iterable", "sequence")}


def put_slots(messages, paths, conditions):
    """Replaces the texts at these paths by opaque values."""
    for index, path in enumerate(paths):
        *steps, last = path
        holder = functools.reduce(lambda value, step: value[step], steps, messages)
        holder[last] = Opaque([Slot(index, (), holder[last])], conditions)


def to_specialization(text, conditions):
    """@return the fields of `Specialization` in `specialization.ts`"""
    pieces = text._pieces if isinstance(text, Opaque) else [text]
    written = [[piece.index, piece.strips] if isinstance(piece, Slot) else piece for piece in pieces]
    return {"pieces": written, "conditions": [json.loads(one) for one in conditions]}
