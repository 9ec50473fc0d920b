"""Implements, with Python's `re`, the part of PyPI's `regex` that transformers' response parser uses, because `regex` has
no build for WebAssembly.

Two properties of `regex` are added to `re`. `\\w` and `\\s` match the same characters. A search may be partial: if
there is no match, it finds the position from which the text may be the beginning of a match. For partial searches, a
pattern is rewritten so that the end of the text matches any rest of the pattern. `test/differential` compares the
results with those of `regex`.
"""

import re
import unicodedata
from functools import lru_cache
from itertools import chain
from re import DOTALL, _compiler, _parser, error, escape
from re._constants import (
    ANY,
    ASSERT,
    ASSERT_NOT,
    AT,
    AT_END_STRING,
    ATOMIC_GROUP,
    BRANCH,
    CATEGORY,
    CATEGORY_NOT_SPACE,
    CATEGORY_NOT_WORD,
    CATEGORY_SPACE,
    CATEGORY_WORD,
    IN,
    LITERAL,
    MAX_REPEAT,
    MAXREPEAT,
    MIN_REPEAT,
    NOT_LITERAL,
    POSSESSIVE_REPEAT,
    RANGE,
    SUBPATTERN,
)

__all__ = ["DOTALL", "compile", "error", "escape", "finditer", "sub"]

# The last code point.
LAST = 0x10FFFF
CHARACTERS = (LITERAL, NOT_LITERAL, ANY, IN)
REPEATS = (MAX_REPEAT, MIN_REPEAT, POSSESSIVE_REPEAT)
AT_END = (AT, AT_END_STRING)
THE_REST = (MAX_REPEAT, (0, MAXREPEAT, [(IN, [(RANGE, (0, LAST))])]))

# The code points of white space: those of Python without the separators U+001C to U+001F.
SPACES = [code for code in range(0x3001) if chr(code).isspace() and not 0x1C <= code <= 0x1F]
# The zero-width non-joiner and joiner, which `regex` counts as word characters.
JOINERS = (0x200C, 0x200D)
# The ranges of circled and squared letters: symbols that Unicode declares alphabetic.
CIRCLED = ((0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189))
CATEGORIES = frozenset(("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc"))


def list_word_codes():
    """Yields the code points of word characters in ascending order."""
    # Unicode has no letters or marks outside these ranges.
    for code in chain(range(0x40000), range(0xE0000, 0xE0200)):
        is_circled = any(first <= code <= last for first, last in CIRCLED)
        if unicodedata.category(chr(code)) in CATEGORIES or code in JOINERS or is_circled:
            yield code


def to_sets(codes):
    """Converts ascending code points to the members of a set, and of the set of all other code points."""
    inside, outside, following = [], [], 0
    for code in codes:
        if code == following and inside:
            inside[-1] = (RANGE, (inside[-1][1][0], code))
        else:
            inside.append((RANGE, (code, code)))
            if code > following:
                outside.append((RANGE, (following, code - 1)))
        following = code + 1
    return inside, [*outside, (RANGE, (following, LAST))]


SPACE, NOT_SPACE = to_sets(SPACES)
WORD, NOT_WORD = to_sets(list_word_codes())
CLASSES = {
    CATEGORY_SPACE: SPACE,
    CATEGORY_NOT_SPACE: NOT_SPACE,
    CATEGORY_WORD: WORD,
    CATEGORY_NOT_WORD: NOT_WORD,
}


class Unsupported(ValueError):
    """A pattern with which partial searches would differ from those of `regex`."""


class Pattern:
    def __init__(self, source, flags):
        self.tree = _parser.parse(source, flags)
        self.flags = flags
        self.whole = self.compile_items(expand_classes(self.tree.data))
        self.groupindex = self.whole.groupindex
        self.start = None

    def compile_items(self, items):
        return _compiler.compile(self.to_sequence(items), self.flags)

    def to_sequence(self, items):
        return nest_sequences(_parser.SubPattern(self.tree.state, items), self.tree.state)

    def prepare(self):
        """Compiles the pattern for partial searches. Raises Unsupported if they would differ from those of `regex`."""
        if self.start is None:
            if self.tree.state.flags & ~(re.UNICODE | re.DOTALL | re.VERBOSE | re.MULTILINE):
                raise Unsupported("the pattern has flags that are not supported")
            self.start = self.compile_items([*expand_classes(list_beginnings(self.tree.data)), AT_END])

    def search(self, text, start=0, partial=False):
        found = self.whole.search(text, start)
        if found is not None or not partial:
            return found and Match(found, False)
        self.prepare()
        found = self.start.search(text, start)
        return found and Match(found, True)

    def match(self, text, start=0):
        return self.whole.match(text, start)

    def fullmatch(self, text):
        return self.whole.fullmatch(text)

    def finditer(self, text):
        return self.whole.finditer(text)

    def sub(self, by, text):
        return self.whole.sub(by, text)


class Match:
    def __init__(self, found, partial):
        self.start, self.end, self.span = found.start, found.end, found.span
        self.group, self.groupdict, self.partial = found.group, found.groupdict, partial


def expand_classes(items):
    """Replaces `\\w` and `\\s` by the sets of their characters."""
    return [map_items(item, expand_classes) if item[0] is not IN else (IN, list_members(item[1])) for item in items]


def list_members(items):
    return [member for item in items for member in (CLASSES.get(item[1], [item]) if item[0] is CATEGORY else [item])]


def map_items(item, change):
    """Applies a function to the lists of items inside an item."""
    kind, value = item
    if kind is BRANCH:
        return (kind, (value[0], [change(list(one)) for one in value[1]]))
    if kind is SUBPATTERN:
        return (kind, (*value[:3], change(list(value[3]))))
    if kind in REPEATS:
        return (kind, (value[0], value[1], change(list(value[2]))))
    if kind in (ASSERT, ASSERT_NOT):
        return (kind, (value[0], change(list(value[1]))))
    if kind is ATOMIC_GROUP:
        return (kind, change(list(value)))
    return item


def list_beginnings(items):
    """Converts items so that at the end of the text they also match any beginning of their matches."""
    return [part for item in items for part in list_beginning(item)]


def list_beginning(item):
    kind, value = item
    if kind in CHARACTERS or kind is AT:
        return [create_branch([item], [AT_END])]
    if kind in (ASSERT, ASSERT_NOT):
        is_ahead = value[0] == 1
        open_end = [(ASSERT, (1, [*list_beginnings(value[1]), AT_END])), THE_REST] if is_ahead else [AT_END]
        return [create_branch([item], open_end)]
    if kind in REPEATS and len(value[2]) == 1 and value[2][0][0] in CHARACTERS:
        least, most, part = value
        if least == 0:
            return [item]
        return [create_branch([item], [(MAX_REPEAT, (0, least - 1, part)), AT_END])]
    if kind in (BRANCH, SUBPATTERN, ATOMIC_GROUP, *REPEATS):
        return [map_items(item, list_beginnings)]
    raise Unsupported(f"the pattern has {str(kind).lower()}, which is not supported")


def create_branch(*ways):
    return (BRANCH, (None, list(ways)))


def nest_sequences(tree, state):
    """Converts sequences to the type that Python's compiler requires."""

    def to_tree(items):
        return nest_sequences(_parser.SubPattern(state, items), state)

    tree.data = [map_items(item, to_tree) for item in tree.data]
    return tree


@lru_cache(maxsize=256)
def compile(source, flags=0):
    return Pattern(source, flags)


def sub(pattern, by, text, flags=0):
    return compile(pattern, flags).sub(by, text)


def finditer(pattern, text, flags=0):
    return compile(pattern, flags).finditer(text)
