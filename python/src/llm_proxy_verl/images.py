"""Images in verl's format: PIL images, in the order of a prompt's placeholders."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from typing import Any

from .errors import CallError


def open_image(url: str) -> Any:
    """Returns the PIL image of a ``data:`` URL, in RGB like verl's own datasets.

    :raises CallError: for invalid images
    """
    # verl depends on Pillow; a trainer without images does not need it.
    from PIL import Image, UnidentifiedImageError

    head, _, data = url.partition(",")
    if not (head.lower().startswith("data:") and head.lower().endswith(";base64")):
        raise CallError("invalid_request", "an image of the call is no data: URL in base64")
    try:
        with Image.open(io.BytesIO(base64.b64decode(data))) as image:
            return image.convert("RGB")
    except (binascii.Error, UnidentifiedImageError, OSError) as error:
        raise CallError("invalid_request", f"an image of the call cannot be read: {error}") from error


def one_placeholder_each(ids: Sequence[int], image_token_id: int) -> list[int]:
    """Returns ids with one placeholder for each image with several: SGLang expands them itself."""
    return [
        token
        for at, token in enumerate(ids)
        if token != image_token_id or at == 0 or ids[at - 1] != image_token_id
    ]
