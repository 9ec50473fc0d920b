"""Parses JSON beyond the limits of Python's ``json``, which the proxy does not have."""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

#: The levels that ``json`` parses at once. A thread that runs an event loop has stack space for many more, and the
#: 1,000 levels that the proxy admits become few parts.
_PART_LEVELS = 100
_DECODER = json.JSONDecoder()
_STRUCTURE = re.compile(r'["\[\]{}]')


def parse_json(text: str) -> Any:
    """Returns the value of a JSON text, whatever its nesting and the length of its integers.

    ``json.loads`` parses some 980 levels at most (fewer under a deep stack), and integers of 4,300 digits. Both depend
    on the version of Python. Longer integers become floats here.

    :raises ValueError: if the text is not JSON
    """
    try:
        return json.loads(text)
    except (RecursionError, ValueError):
        return _parse_in_parts(text)


@dataclass(frozen=True)
class _Part:
    """A part of a JSON text, with ``NaN``, which JSON does not have, in place of the parts that it contains."""

    texts: list[str] = field(default_factory=list)
    values: deque[Any] = field(default_factory=deque)

    def parse(self) -> Any:
        text = "".join(self.texts)
        try:
            return json.loads(text, parse_constant=lambda _: self.values.popleft(), parse_int=_parse_integer)
        except IndexError:
            raise ValueError("the text contains a number that is not JSON") from None


def _parse_in_parts(text: str) -> Any:
    """Parses the innermost parts first, so that no part exceeds the recursion limit."""
    parts = [_Part()]
    depth = parsed_end = index = 0
    while (found := _STRUCTURE.search(text, index)) is not None:
        start, index = found.span()
        if found[0] == '"':
            _, index = _DECODER.raw_decode(text, start)
        elif found[0] in "[{":
            depth += 1
            if depth % _PART_LEVELS == 0:
                parts[-1].texts.append(f"{text[parsed_end:start]}NaN")
                parts.append(_Part())
                parsed_end = start
        elif depth == 0:
            raise ValueError("a bracket is closed that is not open")
        else:
            if depth % _PART_LEVELS == 0:
                part = parts.pop()
                part.texts.append(text[parsed_end:index])
                parts[-1].values.append(part.parse())
                parsed_end = index
            depth -= 1
    if depth > 0:
        raise ValueError("a bracket is not closed")
    parts[0].texts.append(text[parsed_end:])
    return parts[0].parse()


def _parse_integer(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        return float(digits)
