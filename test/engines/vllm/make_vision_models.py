"""Makes tiny models that see images, with random weights: their completions are noise, and the tests check their
prompts.

python make_vision_models.py OUT TOKENIZER

writes `OUT/gemma4` and `OUT/glm4v`, with the processors of these families as they are published.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AddedToken, AutoTokenizer, PreTrainedTokenizerFast

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 8192,
}
VISION = {"hidden_size": 64, "intermediate_size": 64}
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for item in message.content %}
{%- if item.type == 'image' %}IMAGE{% else %}{{ item.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
GEMMA = {
    "boi_token": "<|image>",
    "image_token": "<|image|>",
    "eoi_token": "<image|>",
    "boa_token": "<|audio>",
    "audio_token": "<|audio|>",
    "eoa_token": "<audio|>",
}


def with_tokens(source: Path, out: Path, texts: list[str], image: str):
    config = json.loads((source / "tokenizer_config.json").read_text())
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(source / "tokenizer.json"),
        eos_token=config["eos_token"],
        pad_token=config["pad_token"],
    )
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in texts])
    tokenizer.chat_template = TEMPLATE.replace("IMAGE", image)
    tokenizer.save_pretrained(out)
    ids = {text: tokenizer.convert_tokens_to_ids(text) for text in texts}
    return tokenizer, ids, {**TEXT, "vocab_size": (max(ids.values()) + 64) // 64 * 64}


def gemma4(source: Path, out: Path) -> None:
    tokenizer, ids, text = with_tokens(source, out, [*GEMMA.values(), "<|video|>"], "<|image|>")
    path = out / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "extra_special_tokens": GEMMA}))
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 512, "global_head_dim": 32}
    none = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
    vision = {**VISION, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    config = transformers.Gemma4Config(
        text_config={**text, **layers, **none},
        vision_config={**vision, "patch_size": 16, "pooling_kernel_size": 3, "default_output_length": 280},
        audio_config=None,
        video_token_id=ids["<|video|>"],
        **{f"{name}_id": ids[text] for name, text in GEMMA.items()},
    )
    processor = transformers.Gemma4Processor(
        transformers.Gemma4AudioFeatureExtractor(),
        transformers.Gemma4ImageProcessor(),
        AutoTokenizer.from_pretrained(out),
        transformers.Gemma4VideoProcessor(),
        chat_template=tokenizer.chat_template,
    )
    save(out, transformers.Gemma4ForConditionalGeneration(config), processor)


def glm4v(source: Path, out: Path) -> None:
    marks = [f"<|{begin}{kind}|>" for kind in ("image", "video") for begin in ("begin_of_", "", "end_of_")]
    tokenizer, ids, text = with_tokens(source, out, marks, "".join(marks[:3]))
    names = [f"{kind}_{part}id" for kind in ("image", "video") for part in ("start_token_", "token_", "end_token_")]
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6], "partial_rotary_factor": 1.0}
    vision = {**VISION, "depth": 1, "num_heads": 2, "patch_size": 14, "out_hidden_size": 64, "image_size": 336}
    config = transformers.Glm4vConfig(
        text_config={**text, "rope_parameters": rope},
        vision_config=vision,
        **{name: ids[mark] for name, mark in zip(names, marks, strict=True)},
    )
    image = transformers.Glm4vImageProcessor(size={"shortest_edge": 12_544, "longest_edge": 9_633_792})
    video = transformers.Glm4vVideoProcessor()
    processor = transformers.Glm4vProcessor(image, tokenizer, video, chat_template=tokenizer.chat_template)
    save(out, transformers.Glm4vForConditionalGeneration(config), processor)


def save(out: Path, model, processor) -> None:
    model.to(torch.bfloat16).save_pretrained(out)
    processor.save_pretrained(out)


torch.manual_seed(1)
for make in (gemma4, glm4v):
    make(Path(sys.argv[2]), Path(sys.argv[1]) / make.__name__)
