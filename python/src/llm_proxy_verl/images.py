"""Images in the format of verl: PIL images, in the order of the placeholders in the prompt."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from typing import Any

from .errors import CallError


def open_image(url: str) -> Any:
    """Returns the PIL image of a ``data:`` URL in RGB, as the datasets of verl do.

    :raises CallError: if the image is invalid
    """
    # Imported here because a trainer without images may not have Pillow.
    from PIL import Image, UnidentifiedImageError

    head, _, data = url.partition(",")
    if not (head.lower().startswith("data:") and head.lower().endswith(";base64")):
        raise CallError("invalid_request", "an image of the request is not a base64 data: URL")
    try:
        with Image.open(io.BytesIO(base64.b64decode(data))) as image:
            return image.convert("RGB")
    except (binascii.Error, UnidentifiedImageError, OSError) as error:
        raise CallError("invalid_request", f"an image of the request cannot be read: {error}") from error


def collapse_placeholders(ids: Sequence[int], image_token_id: int) -> list[int]:
    """Replaces each run of placeholders by one placeholder, which SGLang expands itself."""
    return [
        token
        for index, token in enumerate(ids)
        if token != image_token_id or index == 0 or ids[index - 1] != image_token_id
    ]
