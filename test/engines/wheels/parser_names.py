"""Prints the names of the output parsers in the sources of a vLLM or SGLang wheel as JSON."""

import ast
import json
import sys
import zipfile

# The dictionary by file, for tool calls and for reasoning.
REGISTRIES = {
    "tool_calls": {
        "vllm/tool_parsers/__init__.py": "_TOOL_PARSERS_TO_REGISTER",
        "sglang/srt/function_call/function_call_parser.py": "ToolCallParserEnum",
    },
    "reasoning": {
        "vllm/reasoning/__init__.py": "_REASONING_PARSERS_TO_REGISTER",
        "sglang/srt/parser/reasoning_parser.py": "DetectorMap",
    },
}


def find_keys(source, variable):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if ast.unparse(target).split(".")[-1] == variable:
                return [key.value for key in node.value.keys]
    return []


wheel = zipfile.ZipFile(sys.argv[1])
files = set(wheel.namelist())
names = {
    kind: sorted(
        name
        for file, variable in registries.items()
        if file in files
        for name in find_keys(wheel.read(file), variable)
    )
    for kind, registries in REGISTRIES.items()
}
print(json.dumps(names))
