"""Token data in addition to ids and log-probabilities, in the formats of workers and of rows (docs/details.md)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

#: The data types of experts, with their names in NumPy and in safetensors.
_TYPES = {"uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "int32": "I32"}
_ALIGNMENT = 8


def pack_experts(experts: Any, start: int, tokens: int) -> str | None:
    """Encodes an engine's experts for the wire.

    :param experts: an array or a tensor, with a row for each token from the first of the prompt on
    :param start: the position from which the proxy needs them
    :param tokens: number of tokens of prompt and completion; no layer has read the last one
    :returns: base64 of a safetensors file; ``None`` if there is nothing to report
    """
    # verl depends on it; a worker of another engine may not need it.
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
    """Returns the experts of a row as a NumPy array, for its tokens up to the first without reported experts; else
    ``None``. verl pads missing rows at the end, and replays none of those.
    """
    encoded = row.get("routed_experts")
    if encoded is None or not encoded["known"] or encoded["known"][0][0] != 0:
        return None
    import numpy as np

    numbers = np.dtype(encoded["dtype"]).newbyteorder("<")
    experts = np.frombuffer(base64.b64decode(encoded["data"]), numbers).reshape(encoded["shape"])
    return experts[: encoded["known"][0][1]]


def no_experts(shape: Sequence[int]) -> Any:
    """Returns experts of one token as zeros, verl's value for missing ones.

    :param shape: layers, and experts of each
    """
    import numpy as np

    return np.zeros((1, *shape), np.uint8)
