"""The tool call format of every model family, and random tool calls and texts.

The scripts that run SGLang's and vLLM's own parsers share it. Needs only Python.
"""

import json
import random

# Parameters of every tool, by name.
PROPERTIES = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "on": {"type": "boolean"},
    "list": {"type": "array"},
    "map": {"type": "object"},
}
J = lambda v: json.dumps(v, ensure_ascii=False)
S = lambda v: v if isinstance(v, str) else J(v)


def named(calls, key="arguments"):
    return [J({"name": n, key: a}) for n, a in calls]


# By the proxy's parser (a suffix after a space distinguishes variants): SGLang's module and class, and the function
# that formats tool calls.
W = {}
W["hermes"] = (
    "hermes_detector",
    "HermesDetector",
    lambda cs: "\n".join(f"<tool_call>\n{x}\n</tool_call>" for x in named(cs)),
)
W["hermes "] = ("qwen25_detector", "Qwen25Detector", W["hermes"][2])
xml = lambda cs, w="tool_call": "\n".join(
    f"<{w}>\n<function={n}>\n"
    + "".join(f"<parameter={k}>\n{S(v)}\n</parameter>\n" for k, v in a.items())
    + f"</function>\n</{w}>"
    for n, a in cs
)
W["qwen3_coder"] = ("qwen3_coder_detector", "Qwen3CoderDetector", xml)
glm = lambda nl: (
    lambda cs: "\n".join(
        f"<tool_call>{n}{nl}"
        + "".join(f"<arg_key>{k}</arg_key>{nl}<arg_value>{S(v)}</arg_value>{nl}" for k, v in a.items())
        + "</tool_call>"
        for n, a in cs
    )
)
W["glm45"] = ("glm4_moe_detector", "Glm4MoeDetector", glm("\n"))
W["glm45 "] = ("glm47_moe_detector", "Glm47MoeDetector", glm(""))
W["kimi_k2"] = (
    "kimik2_detector",
    "KimiK2Detector",
    lambda cs: (
        "<|tool_calls_section_begin|>"
        + "".join(
            f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{J(a)}<|tool_call_end|>"
            for i, (n, a) in enumerate(cs)
        )
        + "<|tool_calls_section_end|>"
    ),
)
W["deepseek_v3"] = (
    "deepseekv3_detector",
    "DeepSeekV3Detector",
    lambda cs: (
        "<｜tool▁calls▁begin｜>"
        + "\n".join(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{J(a)}\n```<｜tool▁call▁end｜>" for n, a in cs
        )
        + "<｜tool▁calls▁end｜>"
    ),
)
W["deepseek_v3 "] = (
    "deepseekv31_detector",
    "DeepSeekV31Detector",
    lambda cs: (
        "<｜tool▁calls▁begin｜>"
        + "".join(f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{J(a)}<｜tool▁call▁end｜>" for n, a in cs)
        + "<｜tool▁calls▁end｜>"
    ),
)
D = "｜DSML｜"
W["mistral"] = ("mistral_detector", "MistralDetector", lambda cs: "[TOOL_CALLS] [" + ", ".join(named(cs)) + "]")
W["mistral "] = (
    "mistral_detector",
    "MistralDetector",
    lambda cs: "".join(f"[TOOL_CALLS]{n}[ARGS]{J(a)}" for n, a in cs),
)
W["llama3_json"] = (
    "llama32_detector",
    "Llama32Detector",
    lambda cs: "<|python_tag|>" + "; ".join(named(cs, "parameters")),
)
W["minimax_m2"] = (
    "minimax_m2",
    "MinimaxM2Detector",
    lambda cs: (
        "<minimax:tool_call>\n"
        + "".join(
            f'<invoke name="{n}">\n'
            + "".join(f'<parameter name="{k}">{S(v)}</parameter>\n' for k, v in a.items())
            + "</invoke>\n"
            for n, a in cs
        )
        + "</minimax:tool_call>"
    ),
)
W["apertus"] = (
    "apertus2509_detector",
    "Apertus2509Detector",
    lambda cs: "<|tools_prefix|>[" + ", ".join(J({n: a}) for n, a in cs) + "]<|tools_suffix|>",
)
W["cohere_command"] = (
    "cohere_command4_detector",
    "CohereCommand4Detector",
    lambda cs: (
        "<|START_ACTION|>[\n"
        + ",\n".join(
            "    " + J({"tool_call_id": str(i), "tool_name": n, "parameters": a}) for i, (n, a) in enumerate(cs)
        )
        + "\n]<|END_ACTION|>"
    ),
)
W["hy_v3"] = (
    "hunyuan_detector",
    "HunyuanDetector",
    lambda cs: (
        "<tool_calls>\n"
        + "".join(
            f"<tool_call>{n}<tool_sep>\n"
            + "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{S(v)}</arg_value>\n" for k, v in a.items())
            + "</tool_call>\n"
            for n, a in cs
        )
        + "</tool_calls>"
    ),
)


def py(v):
    return repr(v)


def python_call(name, arguments):
    return f"{name}(" + ", ".join(f"{k}={py(v)}" for k, v in arguments.items()) + ")"


W["pythonic"] = (
    "pythonic_detector",
    "PythonicDetector",
    lambda cs: "[" + ", ".join(python_call(*call) for call in cs) + "]",
)
W["lfm2"] = (
    "lfm2_detector",
    "Lfm2Detector",
    lambda cs: "<|tool_call_start|>" + W["pythonic"][2](cs) + "<|tool_call_end|>",
)
W["lfm2 "] = (
    "lfm2_detector",
    "Lfm2Detector",
    lambda cs: "<|tool_call_start|>[" + ", ".join(named(cs)) + "]<|tool_call_end|>",
)
W["qwen3_coder "] = (
    "mimo_detector",
    "MiMoDetector",
    lambda cs: "\n".join(
        f"<tool_call>\n<function={n}>\n"
        + "".join(f"<parameter={k}>{S(v)}</parameter>\n" for k, v in a.items())
        + "</function>\n</tool_call>"
        for n, a in cs
    ),
)


def dsml(block, space=""):
    tag = D + space
    return lambda cs: (
        f"\n\n<{tag}{block}>\n"
        + "".join(
            f'<{tag}invoke name="{n}">\n'
            + "".join(
                f'<{tag}parameter name="{k}" string="{"true" if isinstance(v, str) else "false"}">{S(v)}</{tag}parameter>\n'
                for k, v in a.items()
            )
            + f"</{tag}invoke>\n"
            for n, a in cs
        )
        + f"</{tag}{block}>"
    )


W["deepseek_v32"] = ("deepseekv32_detector", "DeepSeekV32Detector", dsml("function_calls"))
W["deepseek_v4"] = ("deepseekv4_detector", "DeepSeekV4Detector", dsml("tool_calls"))
W["deepseek_v41"] = ("deepseekv41_detector", "DeepSeekV41Detector", dsml("calls", " "))
JSON_TYPES = {int: "number", float: "number", bool: "boolean", list: "array", dict: "object", str: "string"}


def k3(tag, attributes, body):
    return f"<|open|>{tag}{attributes}<|sep|>{body}<|close|>{tag}<|sep|>"


W["kimi_k3"] = (
    "kimik3_detector",
    "KimiK3Detector",
    lambda cs: k3(
        "tools",
        "",
        "".join(
            k3(
                "call",
                f' tool="{n}" index="{i}"',
                "".join(k3("argument", f' key="{k}" type="{JSON_TYPES.get(type(v), "null")}"', S(v)) for k, v in a.items()),
            )
            for i, (n, a) in enumerate(cs, 1)
        ),
    ),
)
NS = "]<]minimax[>["


def m3(value):
    if isinstance(value, dict):
        return "".join(f"{NS}<{k}>{m3(v)}{NS}</{k}>" for k, v in value.items())
    if isinstance(value, list):
        return "".join(f"{NS}<item>{m3(v)}{NS}</item>" for v in value)
    return "" if value is None else S(value)


W["minimax_m3"] = (
    "minimax_m3",
    "MinimaxM3Detector",
    lambda cs: (
        f"{NS}<tool_call>\n"
        + "".join(f'{NS}<invoke name="{n}">{m3(a)}{NS}</invoke>\n' for n, a in cs)
        + f"{NS}</tool_call>"
    ),
)


def g4(value):
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{g4(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(g4, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


W["gemma4"] = (
    "gemma4_detector",
    "Gemma4Detector",
    lambda cs: "".join(f"<|tool_call>call:{n}{g4(a)}<tool_call|>" for n, a in cs),
)


W["internlm"] = (
    "internlm_detector",
    "InternlmDetector",
    lambda cs: "\n".join(
        f"<|action_start|> <|plugin|>\n{x}<|action_end|>" for x in named(cs, "parameters")
    ),
)
W["dots"] = (
    "dots_detector",
    "DotsToolDetector",
    lambda cs: W["minimax_m2"][2](cs).replace("minimax:tool_call>", "dots_function_call>"),
)
W["step3"] = (
    "step3_detector",
    "Step3Detector",
    lambda cs: (
        "<｜tool_calls_begin｜>\n"
        + "".join(
            f'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{n}">\n'
            + "".join(
                f'<steptml:parameter name="{k}">{S(v)}</steptml:parameter>\n' for k, v in a.items()
            )
            + "</steptml:invoke><｜tool_call_end｜>\n"
            for n, a in cs
        )
        + "<｜tool_calls_end｜>"
    ),
)


def cdata(value):
    text = value if isinstance(value, str) else str(value)
    return f"<![CDATA[{text}]]>" if any(c in text for c in "<&\n") else text


W["minicpm5"] = (
    "minicpm5_detector",
    "MiniCPM5Detector",
    lambda cs: "\n".join(
        f'<function name="{n}">'
        + "".join(f'<param name="{k}">{cdata(v)}</param>' for k, v in a.items())
        + "</function>"
        for n, a in cs
    ),
)
W["gigachat3"] = ("gigachat3_detector", "GigaChat3Detector", lambda cs: "<|function_call|>" + named(cs)[0])
W["muse_glimmer"] = (
    "muse_glimmer_detector",
    "MuseGlimmerDetector",
    lambda cs: "<|start|>assistant".join(
        f" to={n}<|message|><atem:function_calls>\n"
        f'<atem:invoke name="{n}">\n'
        + "".join(f'<atem:parameter name="{k}">{S(v)}</atem:parameter>\n' for k, v in a.items())
        + "</atem:invoke>\n</atem:function_calls><|eom|>"
        for n, a in cs
    ),
)


WORDS = ["a", "Oslo", "5", "true", "null", "{", "}", "[", "]", '"', "'", "\\", ",", ":", "<", ">", "&", "</b>", "\n", " ", "é", "漢", "🙂", "x = 1"]
text_of = lambda: "".join(random.choices(WORDS, k=random.randint(0, 8)))
RANDOM = {
    "text": text_of,
    "count": lambda: random.randint(-9, 10**6),
    "ratio": lambda: random.choice([0.5, -1.25, 3.75]),
    "on": lambda: random.random() < 0.5,
    "list": lambda: [random.choice([text_of, lambda: random.randint(0, 9)])() for _ in range(random.randint(0, 3))],
    "map": lambda: {k: random.choice([text_of, RANDOM["count"], RANDOM["list"]])() for k in random.sample("klm", random.randint(0, 3))},
}


def broken(text):
    """Omits, repeats or moves a segment."""
    start, length, to = random.randrange(len(text)), random.randint(1, 20), random.randrange(len(text))
    segment, rest = text[start : start + length], text[:start] + text[start + length :]
    return random.choice([rest, text[:to] + segment + text[to:], rest[:to] + segment + rest[to:]])
