"""Prints how vLLM's own parsers parse random completions of the families that they support: a line of JSON each.

python vllm.py WHEEL COUNT SEED [FAMILY...]

WHEEL is the released wheel of vllm, which is read without being installed. Its `parser`, `tool_parsers` and `reasoning`
run unmodified; dummies replace the rest of vLLM: names of types, and classes of the fields that parsers read and write.
The first line has the tools. `complete` texts have the model's format, `cut` ones end anywhere, `hostile` ones have a
segment omitted, repeated or moved, or are markers and words in any order.
"""

import importlib.abc
import importlib.machinery
import json
import math
import random
import signal
import sys
import types
from dataclasses import dataclass, field

import regex
from tool_call_formats import PROPERTIES, RANDOM, WORDS, J, S, W, broken, named, python_call

WHEEL, COUNT, SEED, *ONLY = sys.argv[1:]


@dataclass
class FunctionCall:
    name: str
    arguments: str
    id: str = None


@dataclass
class ToolCall:
    function: FunctionCall
    id: str = None
    type: str = "function"


@dataclass
class ExtractedToolCallInformation:
    tools_called: bool
    tool_calls: list
    content: str = None


@dataclass
class DeltaFunctionCall:
    name: str = None
    arguments: str = None

    def model_dump(self, **_options):
        return vars(self)


@dataclass
class DeltaToolCall:
    index: int
    id: str = None
    type: str = None
    function: DeltaFunctionCall = None


@dataclass
class DeltaMessage:
    content: str = None
    reasoning: str = None
    tool_calls: list = field(default_factory=list)


@dataclass
class Function:
    name: str
    parameters: dict


@dataclass
class ChatCompletionToolsParam:
    function: Function
    type: str = "function"


@dataclass
class ChatCompletionRequest:
    tools: list
    tool_choice: str = "auto"
    include_reasoning: bool = True
    messages: list = field(default_factory=list)


class SilentLogger:
    def __getattr__(self, _name):
        return lambda *_, **__: None


def by_name(*classes):
    return {each.__name__: each for each in classes}


MEMBERS = {
    "vllm.entrypoints.generate.base.protocol": by_name(
        FunctionCall, ToolCall, ExtractedToolCallInformation, DeltaFunctionCall, DeltaToolCall, DeltaMessage
    ),
    "vllm.entrypoints.openai.chat_completion.protocol": by_name(ChatCompletionToolsParam, ChatCompletionRequest),
    "vllm.exceptions": by_name(type("VLLMValidationError", (ValueError,), {})),
    "vllm.logger": {"init_logger": lambda _name: SilentLogger()},
    "vllm.renderers.chat_utils": {
        "make_tool_call_id": lambda **_: "id",
        "get_tool_call_id_type": lambda _config: "random",
    },
    "vllm.utils": {"random_uuid": lambda: "id"},
    "vllm.utils.collection_utils": {"is_list_of": lambda value, kind: all(isinstance(each, kind) for each in value)},
    "vllm.utils.mistral": {"is_mistral_tokenizer": lambda _tokenizer: False},
    "vllm.envs": {"VLLM_ENFORCE_STRICT_TOOL_CALLING": False, "VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS": 1},
}
REAL = ("vllm.parser", "vllm.reasoning", "vllm.tool_parsers")
UNUSED = ("prometheus_client", "torch", "transformers", "xgrammar")


class Anything:
    """A class that is named but not used."""


class Stub(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Anything,), {})


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports dummies for all of vLLM except its parsers."""

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in UNUSED or name.startswith("vllm.") and not name.startswith(REAL):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        vars(module).update(MEMBERS.get(module.__name__, {}))


sys.modules["vllm"] = package = types.ModuleType("vllm")
package.__path__ = [f"{WHEEL}/vllm"]
sys.meta_path.insert(0, Stubs())

from vllm.parser.parser_manager import ParserManager  # noqa: E402

# Schemas that allow more than one type.
MIXED = {
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    "maybe": {"type": ["string", "null"]},
    "level": {"enum": [1, 2, None]},
}
VALUES = {
    **RANDOM,
    "either": lambda: random.choice([7, "a", "x = 1"]),
    "maybe": lambda: random.choice([None, "a b"]),
    "level": lambda: random.choice([1, 2, None]),
}
SCHEMA = {"type": "object", "properties": {**PROPERTIES, **MIXED}}
TOOLS = [ChatCompletionToolsParam(Function(name, SCHEMA)) for name in ("f", "get_it")]


def seed_oss(calls):
    return W["qwen3_coder"][2](calls).replace("tool_call>", "seed:tool_call>")


def array(opening, close=""):
    return lambda calls: f"{opening}[{', '.join(named(calls))}]{close}"


def lines(calls):
    return "<function_calls>\n" + "\n".join(python_call(*call) for call in calls) + "\n</function_calls>"


# The suffix of a checkpoint's markers.
SUFFIX = ":6124c78e"


def hunyuan4(calls, suffix):
    """Returns tool calls in the format of Hunyuan 4."""

    def element(name, text):
        return f"<{name}{suffix}>{text}</{name}{suffix}>"

    def call(name, arguments):
        pairs = (element("arg_key", key) + element("arg_value", S(value)) for key, value in arguments.items())
        return element("tool_call", name + "".join(pairs))

    return element("tool_calls", "".join(call(*each) for each in calls))


THINK = ("<think>", "</think>")
MISTRAL = ("[THINK]", "[/THINK]")
COHERE = ("<|START_THINKING|>", "<|END_THINKING|>")
# By the proxy's parser (and a variant): vLLM's parsers of tool calls and of reasoning, the markers of reasoning,
# whether vLLM assumes that the prompt has opened it, and the function that formats tool calls.
FAMILIES = {
    "hermes": ("hermes", "qwen3", THINK, True, W["hermes"][2]),
    "qwen3_coder": ("qwen3_coder", "qwen3", THINK, True, W["qwen3_coder"][2]),
    "qwen3_coder nemotron": ("qwen3_coder", "nemotron_v3", THINK, True, W["qwen3_coder"][2]),
    "qwen3_coder step3p5": ("step3p5", "step3p5", THINK, True, W["qwen3_coder"][2]),
    "mimo": ("mimo", "mimo", THINK, True, W["qwen3_coder "][2]),
    "seed_oss": ("seed_oss", "seed_oss", ("<seed:think>", "</seed:think>"), True, seed_oss),
    "minimax_m2": ("minimax_m2", "minimax_m2", THINK, True, W["minimax_m2"][2]),
    "minimax_m3": ("minimax_m3", "minimax_m3", ("<mm:think>", "</mm:think>"), False, W["minimax_m3"][2]),
    "deepseek_v3": ("deepseek_v3", "deepseek_r1", THINK, True, W["deepseek_v3"][2]),
    "deepseek_v31": ("deepseek_v31", "deepseek_v3", THINK, True, W["deepseek_v3 "][2]),
    "deepseek_v32": ("deepseek_v32", "deepseek_v3", THINK, True, W["deepseek_v32"][2]),
    "deepseek_v4": ("deepseek_v4", "deepseek_v4", THINK, True, W["deepseek_v4"][2]),
    "deepseek_v41": ("deepseek_v41", "deepseek_v41", THINK, True, W["deepseek_v41"][2]),
    "glm45": ("glm45", "glm45", THINK, True, W["glm45"][2]),
    "glm45 4.7": ("glm47", "glm47", THINK, True, W["glm45 "][2]),
    "hy_v3": ("hy_v3", "hy_v3", THINK, True, W["hy_v3"][2]),
    "hy_v4": ("hy_v4", "hy_v4", THINK, True, lambda calls: hunyuan4(calls, "")),
    "hy_v4 suffix": (
        *("hy_v4", "hy_v4", (f"<think{SUFFIX}>", f"</think{SUFFIX}>"), True),
        lambda calls: hunyuan4(calls, SUFFIX),
    ),
    "hunyuan_a13b": (
        *("hunyuan_a13b", "hunyuan_a13b", ("<think>\n", "\n</think>\n<answer>\n"), False),
        array("<tool_calls>", "</tool_calls>"),
    ),
    "llama3_json": ("llama3_json", None, None, False, W["llama3_json"][2]),
    "mistral": ("mistral", "mistral", MISTRAL, False, W["mistral"][2]),
    "mistral 11": ("mistral", "mistral", MISTRAL, False, W["mistral "][2]),
    "kimi_k2": ("kimi_k2", "kimi_k2", THINK, True, W["kimi_k2"][2]),
    "kimi_k3": ("kimi_k3", "kimi_k3", ("<|open|>think<|sep|>", "<|close|>think<|sep|>"), True, W["kimi_k3"][2]),
    "gemma4": ("gemma4", "gemma4", ("<|channel>thought\n", "<channel|>"), False, W["gemma4"][2]),
    "muse_glimmer": ("muse_glimmer", "muse_glimmer", None, False, W["muse_glimmer"][2]),
    "gigachat3": ("gigachat3", None, None, False, W["gigachat3"][2]),
    "minicpm5": ("minicpm5", "qwen3", THINK, True, W["minicpm5"][2]),
    "granite": ("granite", None, None, False, array("<|tool_call|>")),
    "phi4_mini_json": ("phi4_mini_json", None, None, False, array("functools")),
    "cohere_command": ("cohere_command3", "cohere_command3", COHERE, False, W["cohere_command"][2]),
    "apertus": ("apertus", None, None, False, W["apertus"][2]),
    "lfm2": ("lfm2", "qwen3", THINK, True, W["lfm2"][2]),
    "qwen3_coder step5": ("step5", "step5", THINK, True, W["qwen3_coder"][2]),
    "glm45 ling3": ("ling3", "ling3", THINK, True, W["glm45 "][2]),
    "pythonic": ("pythonic", None, None, False, W["pythonic"][2]),
    "llama4_pythonic": ("llama4_pythonic", None, None, False, W["pythonic"][2]),
    "llama4_pythonic tagged": (
        *("llama4_pythonic", None, None, False),
        lambda calls: f"<|python_start|>{W['pythonic'][2](calls)}<|python_end|>",
    ),
    "olmo3": ("olmo3", "olmo3", THINK, True, lines),
    "ernie45": ("ernie45", "ernie45", THINK, True, W["hermes"][2]),
    "internlm": ("internlm", None, None, False, lambda calls: W["internlm"][2](calls).replace("> <", "><", 1)),
    "longcat": ("longcat", None, None, False, lambda calls: W["hermes"][2](calls).replace("tool_call>", "longcat_tool_call>")),
    "xlam": ("xlam", None, None, False, array("")),
    "xlam fenced": ("xlam", None, None, False, array("```json\n", "\n```")),
    # The prompt always opens the reasoning: vLLM's parser does not know the opening marker.
    "dots": ("dots", "qwen3", THINK, True, W["dots"][2]),
    "step3": ("step3", "step3", ("", "</think>"), True, W["step3"][2]),
}
# Families whose completions consist of tool calls only (ALONE), or have a single one (SINGLE).
ALONE = ("llama3_json", "muse_glimmer", "pythonic", "llama4_pythonic", "llama4_pythonic tagged", "xlam")
SINGLE = ("gigachat3", "muse_glimmer", "internlm")
# Arguments of other types, which vLLM's parsers read in these families.
UNTYPED = {
    **dict.fromkeys(
        ("hermes", "llama3_json", "mistral", "kimi_k2", "deepseek_v3", "granite", "phi4_mini_json", "apertus", "gigachat3"),
        ("x", '{"text": "a"}', 3, None, [1], True),
    ),
    "deepseek_v31": ("x", [1]),
    "hunyuan_a13b": ("x",),
}
# Values that the markup does not distinguish from others: Gemma's template has Python's form of null, MiniMax M3's has
# no text for several.
AMBIGUOUS = {"gemma4": lambda value: value is None, "minimax_m3": lambda value: value in (None, [], {})}
MARKER = regex.compile(r'<\|?[^<>\s]{1,40}\|?>|\[/?[A-Z_]+\]|\]<\]minimax\[>\[|<\|"\|>|functools')
# Tokens that parsers require in a vocabulary, independent of the text.
TOKENS = [
    *(*THINK, "<tool_call>", "</tool_call>", "<|im_start|>", "<|im_end|>", "<seed:bos>", "<seed:eos>"),
    *("<|python_tag|>", "[TOOL_CALLS]", "<|tool_call|>"),
    *("Ġ</", "</", "think", ">"),
    *(f"<|{side}_{part}|>" for side in ("START", "END") for part in ("THINKING", "RESPONSE", "TEXT", "ACTION")),
]


class Tokenizer:
    """A vocabulary of markers."""

    all_special_tokens = ()
    all_special_ids = ()
    chat_template = None

    def __init__(self, markers):
        self.vocab = {marker: index for index, marker in enumerate(sorted(markers))}

    def get_vocab(self):
        return self.vocab

    def convert_tokens_to_ids(self, token):
        return self.vocab.get(token)

    def encode(self, text, **_options):
        return [self.vocab[text]] if text in self.vocab else []

    def decode(self, _ids, **_options):
        return ""


def raise_timeout(*_):
    raise TimeoutError


signal.signal(signal.SIGVTALRM, raise_timeout)


def create_reader(tool_parser, reasoning_parser, markers):
    parser_class = ParserManager.get_parser(tool_parser, reasoning_parser, enable_auto_tools=True)
    tokenizer = Tokenizer(markers)
    kwargs = {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}

    def read(text):
        # CPU time, because a slow machine must not count as a parser that hangs.
        signal.setitimer(signal.ITIMER_VIRTUAL, 2)
        try:
            parser = parser_class(tokenizer, TOOLS, chat_template_kwargs=kwargs)
            parsed = parser.parse(text, ChatCompletionRequest(TOOLS), enable_auto_tools=True)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:200]}
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        reasoning, content, calls = parsed
        calls = [{"name": call.name, "arguments": parse_arguments(call.arguments)} for call in calls or []]
        return {"reasoning": reasoning or "", "content": content or "", "calls": calls}

    return read


def parse_number(text):
    value = float(text)
    return value if math.isfinite(value) else {"infinite": text}


def parse_arguments(text):
    try:
        return json.loads(text, parse_float=parse_number, parse_constant=parse_number)
    except (TypeError, ValueError):
        return {"malformed": text}


def any_value(test, value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return test(value) or any(any_value(test, each) for each in inner)


def random_tool_calls(key):
    count = 1 if key in SINGLE else random.randint(1, 3)
    while True:
        names = [random.sample(list(VALUES), random.randint(0, 4)) for _ in range(count)]
        calls = [(random.choice(["f", "get_it"]), {name: VALUES[name]() for name in each}) for each in names]
        if not any(any_value(AMBIGUOUS.get(key, lambda _: False), arguments) for _, arguments in calls):
            return calls


def random_completion(key, think, opens, write):
    """Returns reasoning, content and tool calls, each of which may be missing."""
    calls = write(random_tool_calls(key)) if random.random() < 0.8 else ""
    content = "" if calls and key in ALONE else random.choice(["", "I look.", "I look.\n\n", " a\n b"])
    reasoning = ""
    if think and random.random() < 0.6:
        reasoning = random.choice(["I think.", "\na\n\nb ", "if a < b: <b>\n", ""])
        opening = "" if opens and random.random() < 0.5 else think[0]
        reasoning = opening + reasoning + think[1] + random.choice(["", "\n\n"])
    elif opens:
        reasoning = think[1]
    return reasoning + content + calls


def hostile(text, markers):
    if text and random.random() < 0.7:
        return broken(text)
    return "".join(random.choices([*markers, *WORDS, text[:20]], k=random.randint(1, 12)))


print(J({"tools": [{"type": "function", "function": vars(tool.function)} for tool in TOOLS]}))
for key, (tool_parser, reasoning_parser, think, opens, write) in FAMILIES.items():
    parser, *variant = key.split(" ")
    if ONLY and key not in ONLY:
        continue
    random.seed(f"{SEED} {key}")
    own = sorted({*MARKER.findall(write([("f", {"text": "a", "count": 1})])), *(think or ())})
    read = create_reader(tool_parser, reasoning_parser, {*own, *TOKENS})
    about = {"parser": parser, "reader": key, "markers": own, "opened": opens}
    for _ in range(int(COUNT)):
        text = random_completion(key, think, opens, write)
        kind = random.choice(["complete", "cut", "hostile"])
        if kind == "cut":
            text = text[: random.randrange(len(text) + 1)]
        elif kind == "hostile":
            text = hostile(text, own)
        print(J({**about, "kind": kind, "text": text, **read(text)}))
    for arguments in UNTYPED.get(key, ()):
        text = (think[1] if opens else "") + write([("f", arguments)])
        print(J({**about, "kind": "complete", "text": text, **read(text)}))
