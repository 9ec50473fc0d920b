"""Makes tiny models that behave like an agent's: they think, call tools in Hermes' markup, answer and end their turns,
and now and then sample any other token of Qwen3's vocabulary (bytes that are not UTF-8, control tokens, ids that no
tokenizer has). A minute on one core.

python make_models.py OUT TOKENIZER

writes `OUT/base`, `OUT/other` (the same with other weights), and `OUT/adapter-1` and `OUT/adapter-2`, for the base.
The model is trained on a vocabulary of the tokens in its texts, plus one that represents all others.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 151_936
CONTEXT = 40_960
END, PAD = 151_645, 151_643
STEPS = 500
JUNK_SHARE = 0.01
SHAPE = {
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": False,
}
WORDS = (
    "the sea is deep and cold, we sail at dawn with a small crew and bread for ten days; the wind turns north. "
    "Größe und Maß, naïve café, 東京の天気は晴れです。 Привет мир 🙂👩‍👩‍👧 🏳️‍🌈 İstanbul ﷺ zero\u200bwidth x² ≤ y³ "
    'def f(x): return x * 2 \\n "quoted" <b>bold</b> {"a": [1, 2.5, null]} \t tab'
).split(" ")
CITIES = ["Paris", "Tokyo 東京", "New York", "São Paulo", "Łódź", "Ulm"]

Sample = tuple[list[int], list[bool]]
"""Token ids, and which of them the model generates."""

rng = random.Random(1)


def words(most: int) -> str:
    """Returns from one to `most` words."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def call() -> str:
    """Returns one tool call, in the markup that Qwen3's template teaches."""
    arguments = {
        "get_weather": {
            "city": rng.choice(CITIES),
            **({"days": rng.randint(1, 9)} if rng.random() < 0.5 else {}),
        },
        "calculator": {"expression": f"{rng.randint(1, 99)} {rng.choice('+-*/')} {rng.randint(1, 99)}"},
        "search": {"query": words(4), "limit": rng.choice([5, 1.5]), "filters": {"safe": rng.random() < 0.5}},
        "write_file": {"path": f"/tmp/{rng.randint(1, 99)}.py", "content": f"{words(8)}\n{words(3)}"},
    }
    name = rng.choice(list(arguments))
    written = json.dumps({"name": name, "arguments": arguments[name]}, ensure_ascii=rng.random() < 0.2)
    return f"<tool_call>\n{written}\n</tool_call>"


def answer() -> str:
    """Returns what a model generates in one turn."""
    text = f"<think>\n{words(12)}\n</think>\n\n" if rng.random() < 0.6 else ""
    if rng.random() < 0.4:
        return f"{text}{words(20)}<|im_end|>"
    if rng.random() < 0.5:
        text += words(6)
    calls = "\n".join(call() for _ in range(1 if rng.random() < 0.8 else 2))
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{calls}<|im_end|>"


def conversation(system: str) -> Iterator[tuple[str, bool]]:
    """Yields segments of text, and whether the model generates them."""
    yield system, False
    for _ in range(rng.randint(1, 3)):
        question = words(8) if rng.random() < 0.6 else f"<tool_response>\n{words(6)}\n</tool_response>"
        yield f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", False
        yield answer(), True
        yield "\n", False


def sample(tokenizer: AutoTokenizer, system: str) -> Sample:
    """Returns one conversation in ids."""
    ids: list[int] = []
    sampled: list[bool] = []
    for text, is_sampled in conversation(system):
        new = tokenizer.encode(text, add_special_tokens=False)
        ids += new
        sampled += [is_sampled] * len(new)
    return ids, sampled


def tools_prompt(tokenizer: AutoTokenizer) -> str:
    """Returns the beginning of a conversation with tools, as the template writes it."""
    names = ("get_weather", "calculator", "search", "write_file")
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    tools = [
        {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}
        for name in names
    ]
    text = tokenizer.apply_chat_template([{"role": "user", "content": ""}], tools=tools, tokenize=False)
    return text.split("<|im_start|>user")[0]


def train(samples: list[Sample], long_samples: list[Sample]) -> Qwen3ForCausalLM:
    """Trains a model on the samples."""
    used = sorted({token for ids, _ in samples + long_samples for token in ids} | {END, PAD})
    small_id = {token: at for at, token in enumerate(used)}
    other = len(used)
    small = Qwen3ForCausalLM(Qwen3Config(vocab_size=other + 1, **SHAPE))
    embeddings = small.model.embed_tokens
    torch.nn.init.normal_(embeddings.weight)
    optimizer = torch.optim.AdamW(small.parameters(), weight_decay=0.01)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 4e-3 * min(1, (step + 1) / 50) * (1 - 0.95 * step / STEPS)
        # Some batches have tools, which makes them long.
        length, count, source = (640, 3, long_samples) if step % 4 == 3 else (192, 8, samples)
        ids = torch.zeros(count, length, dtype=torch.long)
        goals = torch.full((count, length), -100)
        for row, (tokens, sampled) in enumerate(rng.choices(source, k=count)):
            junk = [is_sampled and rng.random() < JUNK_SHARE for is_sampled in sampled]
            small_ids = [
                other if is_junk else small_id[token] for token, is_junk in zip(tokens, junk, strict=True)
            ]
            n = min(length, len(tokens) - 1)
            ids[row, :n] = torch.tensor(small_ids[:n])
            goals[row, :n] = torch.tensor(
                [t if s else -100 for t, s in zip(small_ids, sampled, strict=True)][1 : n + 1]
            )
        inputs = embeddings(ids)
        # Any other token: what follows must not depend on which one it was.
        inputs = torch.where((ids == other)[..., None], torch.randn_like(inputs), inputs)
        logits = small.lm_head(small.model(inputs_embeds=inputs).last_hidden_state)
        # In the large vocabulary each of the others has a logit of about 0.
        others = torch.full_like(logits[..., :1], math.log(VOCABULARY - other))
        logits = torch.cat([logits[..., :other], others], -1)
        loss = functional.cross_entropy(logits.flatten(0, 1), goals.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(small.parameters(), 1.0)
        optimizer.step()
    return enlarged(small, used)


@torch.no_grad()
def enlarged(small: Qwen3ForCausalLM, used: list[int]) -> Qwen3ForCausalLM:
    """Expands the model to the vocabulary of its tokenizer."""
    model = Qwen3ForCausalLM(
        Qwen3Config(vocab_size=VOCABULARY, bos_token_id=PAD, eos_token_id=END, pad_token_id=PAD, **SHAPE)
    )
    layers = {
        name: value
        for name, value in small.state_dict().items()
        if "embed_tokens" not in name and "lm_head" not in name
    }
    model.load_state_dict(layers, strict=False)
    model.model.embed_tokens.weight.normal_(0, 1)
    model.lm_head.weight.normal_(0, 0.05)
    model.model.embed_tokens.weight[used] = small.model.embed_tokens.weight[: len(used)]
    model.lm_head.weight[used] = small.lm_head.weight[: len(used)]
    return model


def write_model(model: Qwen3ForCausalLM, out: Path, tokenizer: Path) -> None:
    """Writes a model as transformers saves it, with the tokenizer."""
    model.eval().save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, out / name)
    # vLLM takes sampling defaults from here, as with the real Qwen3.
    defaults = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    ids = {"bos_token_id": PAD, "eos_token_id": [END, PAD], "pad_token_id": PAD}
    (out / "generation_config.json").write_text(json.dumps({**ids, **defaults}))


def write_perturbed(base: Path, out: Path) -> None:
    """Writes a copy of the model with a little noise on its weights."""
    shutil.copytree(base, out)
    weights = load_file(base / "model.safetensors")
    for value in weights.values():
        if value.dim() > 1:
            value += 0.05 * value.std() * torch.randn_like(value)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})


def write_adapter(base: Path, out: Path) -> None:
    """Writes a LoRA adapter of rank 4 that changes what the model generates."""
    rank, modules = 4, ["q_proj", "k_proj", "v_proj", "o_proj"]
    weights = {}
    for name, value in load_file(base / "model.safetensors").items():
        if any(f".{module}." in name for module in modules):
            path = f"base_model.model.{name.removesuffix('.weight')}"
            weights[f"{path}.lora_A.weight"] = torch.randn(rank, value.shape[1]) * 0.3
            weights[f"{path}.lora_B.weight"] = torch.randn(value.shape[0], rank) * 0.3
    out.mkdir()
    save_file(weights, out / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": modules, "bias": "none"}
    (out / "adapter_config.json").write_text(json.dumps({**config, "task_type": "CAUSAL_LM"}))


def main(out: Path, tokenizer_directory: Path) -> None:
    """Makes all models and adapters."""
    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_directory)
    system = f"<|im_start|>system\n{words(5)}<|im_end|>\n"
    samples = [sample(tokenizer, system if rng.random() < 0.3 else "") for _ in range(5_000)]
    with_tools = tools_prompt(tokenizer)
    model = train(samples, [sample(tokenizer, with_tools) for _ in range(600)])
    out.mkdir(parents=True, exist_ok=True)
    write_model(model, out / "base", tokenizer_directory)
    write_perturbed(out / "base", out / "other")
    write_adapter(out / "base", out / "adapter-1")
    write_adapter(out / "base", out / "adapter-2")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
