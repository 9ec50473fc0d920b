"""Routed experts, in the formats of the worker protocol and of rows (docs/details.md)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

#: The data types of experts: names in NumPy, and in safetensors.
_TYPES = {"uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "int32": "I32"}
_ALIGNMENT = 8


def pack_experts(experts: Any, start: int, tokens: int) -> str | None:
    """Encodes the experts of an engine's output for the worker protocol.

    :param experts: an array or a tensor with a row for each token, from the first token of the prompt
    :param start: the index of the first token whose experts the proxy requests
    :param tokens: number of tokens of prompt and completion; the last one was not an input of the model
    :returns: base64 of a safetensors file; ``None`` without experts
    """
    # Imported here because only verl requires NumPy; workers of other engines may not have it.
    import numpy as np

    rows = np.asarray(experts)
    if rows.ndim < 2 or not np.issubdtype(rows.dtype, np.integer):
        return None
    rows = rows[start : tokens - 1]
    if len(rows) == 0:
        return None
    if rows.dtype.name not in _TYPES:
        rows = rows.astype(np.int32)
    rows = np.ascontiguousarray(rows, rows.dtype.newbyteorder("<"))
    entry = {"dtype": _TYPES[rows.dtype.name], "shape": list(rows.shape), "data_offsets": [0, rows.nbytes]}
    header = json.dumps({"__metadata__": {"start": str(start)}, "experts": entry}).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    return base64.b64encode(len(header).to_bytes(8, "little") + header + rows.tobytes()).decode("ascii")


def unpack_experts(row: Mapping[str, Any]) -> Any:
    """Returns the experts of a row as a NumPy array for the tokens before the first one without reported experts.

    verl pads the missing tokens at the end, and does not replay them.

    :returns: shape ``(tokens, layers, experts)``; ``None`` if the first token has no reported experts
    """
    encoded = row.get("routed_experts")
    if encoded is None or not encoded["known"] or encoded["known"][0][0] != 0:
        return None
    import numpy as np

    numbers = np.dtype(encoded["dtype"]).newbyteorder("<")
    experts = np.frombuffer(base64.b64decode(encoded["data"]), numbers).reshape(encoded["shape"])
    return experts[: encoded["known"][0][1]]


def create_empty_experts(shape: Sequence[int]) -> Any:
    """Returns zeros as the experts of one token, which is verl's value for missing experts.

    :param shape: number of layers, number of experts per layer
    """
    import numpy as np

    return np.zeros((1, *shape), np.uint8)
