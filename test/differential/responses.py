"""Prints published response templates, and how transformers parses random completions by each of them.

python test/differential/responses.py TRL.whl 12 1 > test/unit/proxy/tokens/responses/fixtures/published.json

The numbers are the completions per template, and the seed. `run.ts` generates more.
"""

import ast
import json
import random
import sys
import zipfile
from pathlib import Path

import transformers
from transformers.utils.chat_parsing import ResponseParser

FIELDS_OF_REASONING = ("reasoning_content", "thinking", "reasoning")


def load_templates(trl_wheel):
    """Returns TRL's templates and the fallbacks of `transformers serve`; from source text, because importing TRL needs
    PyTorch."""
    source = zipfile.ZipFile(trl_wheel).read("trl/chat_template_utils.py").decode()
    names = {"_SUPPORTS_PARSE_RESPONSE_TOOLS": True}
    exec(source[source.index("\nqwen3_template = {") : source.index("\ncohere_chat_template")], names)
    templates = {f"trl {name.removesuffix('_template')}": value for name, value in names.items() if name.endswith("_template")}
    serving = ast.parse(Path(transformers.__path__[0], "cli/serving/utils.py").read_text())
    for node in serving.body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "_RESPONSE_TEMPLATE_FALLBACKS":
            for models, template in ast.literal_eval(node.value).items():
                templates[f"transformers {models[0]}"] = template
    return templates


def parse(template, prefix, chunks, tools):
    """Returns the values of all regions in order; the parsed message itself has only the last of several."""
    parser = ResponseParser(template, prefix=prefix, tools=tools)
    try:
        events = [event for chunk in chunks for event in parser.feed(chunk)] + parser.finalize()[1]
    except (KeyError, TypeError, ValueError) as error:
        return {"malformed": str(error)[:80]}
    closed = [(event["field"], event["value"]) for event in events if event["type"] == "region_close"]
    calls = [call for name, value in closed if name == "tool_calls" for call in (value if isinstance(value, list) else [value])]
    return {
        "content": "".join(value for name, value in closed if name == "content"),
        "reasoning": "".join(value for name, value in closed if name in FIELDS_OF_REASONING),
        "calls": [call["function"] for call in calls],
    }


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_it",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}},
        },
    }
]

# Reasoning, a tool call and an end in the format of a template's models.
FORMATS = {
    "qwen3": ("<think>\n{}\n</think>\n\n", '<tool_call>\n{{"name": "get_it", "arguments": {{"a": "{}", "n": 5}}}}\n</tool_call>', "<|im_end|>"),
    "qwen2": ("<think>\n{}\n</think>\n\n", '<tool_call>\n{{"name": "get_it", "arguments": {{"a": "{}", "n": 5}}}}\n</tool_call>', "<|im_end|>"),
    "qwen3_5": ("<think>\n{}\n</think>\n\n", "<tool_call>\n<function=get_it>\n<parameter=a>\n{}\n</parameter>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>", "<|im_end|>"),
    "glm4moe": ("<think>{}</think>\n", "<tool_call>get_it\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>", "<|user|>"),
    "llama3": ("{}", '{{"name": "get_it", "parameters": {{"a": "{}", "n": 5}}}}', "<|eot_id|>"),
    "gptoss": ("<|channel|>analysis<|message|>{}<|end|><|start|>assistant", ' to=functions.get_it<|channel|>commentary json<|message|>{{"a": "{}", "n": 5}}<|call|>', "<|channel|>final<|message|>"),
    "lfm2_2_5": ("<think>{}</think>", "<|tool_call_start|>[get_it(a='{}', n=5)]<|tool_call_end|>", "<|im_end|>"),
    "nemotron_3": ("{}\n</think>\n", "<tool_call>\n<function=get_it>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>\n", "<|im_end|>"),
    "gemma4": ("<|channel>thought\n{}<channel|>", '<|tool_call>call:get_it{{a:<|"|>{}<|"|>,n:5}}<tool_call|>', "<turn|>"),
    "deepseek_r1_distill": ("{}\n</think>\n\n", "{}", "<｜end▁of▁sentence｜>"),
}
WORDS = ["Oslo", "it is", ' "so" ', "\n", "  ", "\u200d\u00e9\U0001f642", "\x1c", "<", "{", "a'b", "</", "5", "\u0915\u094d", "null", "]"]


def get_prefix(template):
    anchor = template.get("start_anchor")
    if anchor is None:
        return {"<|im_": "<|im_start|>assistant\n<think>\n", "(?:<\\": "<|turn>model\n", "<\\|im": "<|im_start|>assistant\n<think>\n"}[template["start_anchor_pattern"][:5]]
    return f"user says hi{anchor if isinstance(anchor, str) else anchor[0]}"


def sample(name, rnd):
    """Returns a completion: complete, cut or broken."""
    reasoning, call, end = FORMATS[name.split(" ")[1]]
    words = lambda: "".join(rnd.choice(WORDS) for _ in range(rnd.randint(0, 5)))
    parts = [reasoning.format(words())] if rnd.random() < 0.7 else []
    for _ in range(rnd.randint(0, 4)):
        parts.append(call.format(words()) if rnd.random() < 0.6 else words())
    text = "".join(parts) + rnd.choice(["", "", end])
    kind = rnd.random()
    if kind < 0.25:
        text = text[: rnd.randint(0, len(text))]
    elif kind < 0.5 and text:
        at = rnd.randint(0, len(text) - 1)
        text = text[:at] + rnd.choice(["", reasoning[:7], end[:4], "{", "\n", call[:12]]) + text[at + rnd.randint(0, 3) :]
    return text


def generate_cases(templates, count, seed):
    rnd = random.Random(seed)
    for name, template in templates.items():
        for _ in range(count):
            prefix, text = get_prefix(template), sample(name, rnd)
            cuts = sorted({0, len(text), *(rnd.randint(0, len(text)) for _ in range(rnd.randint(0, 40)))})
            chunks = [text[start:end] for start, end in zip(cuts, cuts[1:])]
            parsed = {"whole": parse(template, prefix, [text], TOOLS), "streamed": parse(template, prefix, chunks, TOOLS)}
            yield {"template": name, "prefix": prefix, "pieces": chunks, **parsed}


if __name__ == "__main__":
    published = load_templates(sys.argv[1])
    lines = ",\n".join(json.dumps(case) for case in generate_cases(published, int(sys.argv[2]), int(sys.argv[3])))
    templates = ",\n".join(f"{json.dumps(name)}:{json.dumps(template)}" for name, template in published.items())
    print(f'{{"tools":{json.dumps(TOOLS)},\n"templates":{{\n{templates}}},\n"cases":[\n{lines}\n]}}')
