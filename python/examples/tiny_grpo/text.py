"""Text and tokens: the vocabulary that llm-proxy brings along, and this example's chat template."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

HERE = Path(__file__).parent
EMBEDDED = HERE.parents[2] / "src/embedded/model"
TEMPLATE = (HERE / "chat_template.jinja").read_text()

tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
END_OF_TURN = tokenizer.token_to_id("<|im_end|>")
PADDING = tokenizer.token_to_id("<|endoftext|>")
VOCABULARY = tokenizer.get_vocab_size()

_jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
# Jinja2's own escapes what HTML would read.
_jinja.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
_template = _jinja.from_string(TEMPLATE)
_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, *, open_turn: bool) -> str:
    """The conversation as text.

    :param open_turn: whether the assistant's next message is begun
    """
    return _template.render(messages=messages, tools=tools, add_generation_prompt=open_turn)


def encode(text: str) -> list[int]:
    """The ids that the tokenizer gives a text: one way of many to write it."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def decode(ids: list[int]) -> str:
    """The text of ids, special tokens included."""
    return tokenizer.decode(ids, skip_special_tokens=False)


def parse_answer(text: str) -> dict[str, Any]:
    """An assistant's message, its tool calls taken out of its text as vLLM's Hermes parser does."""
    content = text.removesuffix("<|im_end|>")
    calls = []
    for found in _CALL.findall(content):
        try:
            call = json.loads(found)
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        except (ValueError, KeyError, TypeError):
            return {"role": "assistant", "content": content}
        calls.append({"id": f"call_{len(calls)}", "type": "function", "function": function})
    if not calls:
        return {"role": "assistant", "content": content}
    return {"role": "assistant", "content": content.split("<tool_call>")[0] or None, "tool_calls": calls}


def write_model_directory(directory: Path) -> Path:
    """What ``llm-proxy serve --tokenizer`` reads: the vocabulary with this example's template, in ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(EMBEDDED / "tokenizer.json", directory)
    config = json.loads((EMBEDDED / "tokenizer_config.json").read_text()) | {"chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    return directory
