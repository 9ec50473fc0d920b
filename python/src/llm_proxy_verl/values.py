"""Parsers of option values, which are strings in the environment and have types in YAML."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llm_proxy.api import hide_credentials

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_text(value: object) -> str:
    """Parses a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be a string that is not empty")
    return value


def create_integer_parser(minimum: int) -> Callable[[object], int]:
    """Returns a parser of integers of at least ``minimum``."""

    def read(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ValueError(f"must be an integer of at least {minimum}")
        return value

    return read


def parse_seconds(value: object) -> float:
    """Parses a number of seconds, or a number with the unit ms, s, m, h or d."""
    if isinstance(value, str) and (found := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", value)):
        value = float(found[1]) * _UNIT_S[found[2] or "s"]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError("must be a number of seconds, or a duration such as 30m")
    return float(value)


def parse_boolean(value: object) -> bool:
    """Parses a boolean, or ``true``, ``false``, ``1`` or ``0``."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "1", "false", "0"):
        return value.lower() in ("true", "1")
    raise ValueError("must be true or false")


def parse_json_object(value: object) -> dict[str, Any]:
    """Parses a mapping, or the JSON text of an object."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ValueError("must be a JSON object")
    return dict(to_json_value(value))


def create_choice_parser(*words: str) -> Callable[[object], Any]:
    """Returns a parser of one of ``words``."""

    def read(value: object) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return str(value)

    return read


def create_list_parser(separators: str) -> Callable[[object], tuple[str, ...]]:
    """Returns a parser of a list of strings, or of one string that is split at any of ``separators``."""

    def read(value: object) -> tuple[str, ...]:
        parts = re.split(f"[{re.escape(separators)}]", value) if isinstance(value, str) else value
        if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
            raise ValueError("must be a list of strings")
        stripped = tuple(part.strip() for part in parts if part.strip())
        if not stripped:
            raise ValueError("must not be empty")
        return stripped

    return read


def parse_keys(value: object) -> tuple[str, ...]:
    """Parses keys separated by commas, or ``@path`` of a file with a key per line."""
    if isinstance(value, str) and value.startswith("@"):
        try:
            return create_list_parser("\n")(Path(value[1:]).read_text())
        except OSError as error:
            raise ValueError(f"cannot be read: {error}") from None
    return create_list_parser(",")(value)


def parse_base_url(value: object) -> str:
    """Parses a base URL. It must not contain credentials, because the URL is logged and sent to agents."""
    parts = urlsplit(value) if isinstance(value, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        shown = hide_credentials(value) if isinstance(value, str) else value
        raise ValueError(f"must be an http:// or https:// URL, unlike {shown!r}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not contain a user name or a password")
    return parts.geturl().rstrip("/")


def parse_base_urls(value: object) -> tuple[str, ...]:
    """Parses base URLs separated by commas; ``ws://`` URLs, which workers use, become ``http://`` URLs."""
    return tuple(
        parse_base_url(re.sub(r"^ws(s?):", r"http\1:", url)) for url in create_list_parser(",")(value)
    )


def to_json_value(value: Any) -> Any:
    """Returns a copy of a value of JSON types; containers of OmegaConf, NumPy and PyTorch are converted."""
    if isinstance(value, (str, bool, int, type(None))):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_json_value(entry) for key, entry in value.items()}
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (bytes, bytearray)):
        return [to_json_value(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    # Arrays and tensors, and their scalars.
    return to_json_value(value.tolist()) if hasattr(value, "tolist") else str(value)
