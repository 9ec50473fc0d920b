"""Images: from a worker's request to verl's engine, and from a session's rows to verl's field."""

from __future__ import annotations

import base64
import io
from types import SimpleNamespace
from typing import Any

import pytest

from llm_proxy_verl.errors import CallError
from llm_proxy_verl.images import collapse_placeholders, open_image
from llm_proxy_verl.rows import parse_result
from llm_proxy_verl.verl_engine import RolloutLimits, VerlEngine
from llm_proxy_verl.worker.frames import BadFrameError, pack_token_ids, parse_request

Image = pytest.importorskip("PIL.Image")


def data_url(width: int, height: int) -> str:
    file = io.BytesIO()
    Image.new("RGBA", (width, height)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def frame(*urls: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {
        "type": "completion_request",
        "request_id": "r",
        "session_id": "s",
        "kind": "chat",
        "body": {"max_tokens": 5},
        "messages": [{"role": "user", "content": "x"}, {"role": "user", "content": parts}],
        "prompt_token_ids": pack_token_ids([1, 9, 9, 9, 2, 9, 3]),
        "image_token_id": 9,
        "image_tokens": [3, 1],
    }


class Client:
    """The part of verl's client that is called."""

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}

    async def generate(self, request_id: Any, **arguments: Any) -> Any:
        self.arguments = arguments
        return SimpleNamespace(token_ids=[5], log_probs=[-0.5], stop_reason="completed")


@pytest.mark.parametrize(("server", "ids"), [("vllm", [1, 9, 9, 9, 2, 9, 3]), ("sglang", [1, 9, 2, 9, 3])])
async def test_the_engine_gets_the_pixels_beside_the_ids(server: str, ids: list[int]) -> None:
    client = Client()
    engine = VerlEngine(client, RolloutLimits(server, 100, 100))
    await engine.generate(parse_request(frame(data_url(4, 2), data_url(1, 3))))
    assert client.arguments["prompt_ids"] == ids
    assert [(image.size, image.mode) for image in client.arguments["image_data"]] == [
        ((4, 2), "RGB"),
        ((1, 3), "RGB"),
    ]


async def test_a_request_without_images_has_no_image_argument() -> None:
    client = Client()
    plain = {name: value for name, value in frame().items() if not name.startswith("image")}
    await VerlEngine(client, RolloutLimits("vllm", 100, 100)).generate(parse_request(plain))
    assert "image_data" not in client.arguments


def test_data_that_is_not_an_image_is_rejected() -> None:
    for url in ("https://example.org/a.png", "data:image/png;base64,AAAA", "data:image/png,abc", ""):
        with pytest.raises(CallError):
            open_image(url)
    with pytest.raises(BadFrameError):
        parse_request(frame(None))


def test_adjacent_placeholders_are_one_image() -> None:
    assert collapse_placeholders([9, 9, 1, 9, 2, 2], 9) == [9, 1, 9, 2, 2]


def test_a_row_has_its_images_in_order() -> None:
    names = ("finish_reason", "finished", "truncated", "prompt_truncated")
    row = {
        "prompt_ids": [1],
        "response_ids": [5],
        "response_mask": [1],
        "response_logprobs": [-0.5],
        "num_turns": 1,
        "metrics": {"inert": 0},
        "extra_fields": {
            **dict.fromkeys((*names, "weight_version_min", "weight_version_max")),
            "turn_rewards": [],
        },
    }
    images = [{"sha256": "b"}, {"sha256": "a"}, {"sha256": "b"}]
    result = {
        "rows": [{**row, "images": images}, row],
        "images": {"a": "data:a", "b": "data:b"},
        "reward": None,
        "left_out_turns": 0,
    }
    first, second = parse_result(result, 0).rows
    assert list(first.images) == ["data:b", "data:a", "data:b"]
    assert list(second.images) == []
