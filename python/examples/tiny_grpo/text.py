"""Text and tokens: the vocabulary of llm-proxy's embedded model, and this example's chat template."""

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
# Jinja2's own filter escapes characters for HTML.
_jinja.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
_template = _jinja.from_string(TEMPLATE)
_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, *, open_turn: bool) -> str:
    """Returns the conversation as text.

    :param open_turn: whether the text ends with the beginning of the assistant's next message
    """
    return _template.render(messages=messages, tools=tools, add_generation_prompt=open_turn)


def encode(text: str) -> list[int]:
    """Returns the ids of a text as the tokenizer splits it, one of many possible ways."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def decode(ids: list[int]) -> str:
    """Returns the text of ids, special tokens included."""
    return tokenizer.decode(ids, skip_special_tokens=False)


def parse_message(text: str) -> dict[str, Any]:
    """Returns an assistant's message with its tool calls parsed as vLLM's Hermes parser does."""
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
    """Writes the directory that ``llm-proxy serve --tokenizer`` reads: the vocabulary and this example's template."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(EMBEDDED / "tokenizer.json", directory)
    config = json.loads((EMBEDDED / "tokenizer_config.json").read_text()) | {"chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    return directory
