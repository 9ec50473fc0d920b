"""Reads signatures from verl's source without importing it: from its wheels, or from the fake."""

from __future__ import annotations

import ast
import os
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
#: Oldest and newest of each supported minor version.
VERSIONS = ("0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1")
#: The version whose signatures the fake has.
FAKE_VERSION = "0.9.1"

AGENT_LOOP = "verl/experimental/agent_loop/agent_loop.py"
LLM_SERVER = "verl/workers/rollout/llm_server.py"
REPLICA = "verl/workers/rollout/replica.py"


def wheel_text(version: str, path: str) -> str:
    """Returns a file of a verl wheel, which `python/test` downloads."""
    directory = Path(os.environ.get("VERL_WHEELS", HERE.parent / ".venv" / "wheels"))
    wheels = sorted(directory.glob(f"verl-{version}-*.whl"))
    assert wheels, f"no wheel of verl {version} in {directory}: run python/test, which downloads it"
    with zipfile.ZipFile(wheels[0]) as wheel:
        return wheel.read(path).decode()


def fake_text(path: str) -> str:
    return (HERE / "fakes" / path).read_text()


class Source:
    """One module's classes and functions."""

    def __init__(self, text: str) -> None:
        self._tree = ast.parse(text)

    def parameters(self, function: str) -> list[str]:
        """The parameters of `name` or `Class.name`, with their defaults and without annotations."""
        args = self._function(function).args
        plain = [arg.arg for arg in args.args]
        defaults = [ast.unparse(default) for default in args.defaults]
        split = len(plain) - len(defaults)
        found = plain[:split] + [
            f"{name}={value}" for name, value in zip(plain[split:], defaults, strict=True)
        ]
        if args.kwonlyargs:
            found.append("*")
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
            found.append(arg.arg if default is None else f"{arg.arg}={ast.unparse(default)}")
        return found + ([f"**{args.kwarg.arg}"] if args.kwarg else [])

    def fields(self, name: str) -> list[str]:
        """The fields of a pydantic model, with their types and defaults."""
        body = self._class(name).body
        return [ast.unparse(line) for line in body if isinstance(line, ast.AnnAssign)]

    def field_names(self, name: str) -> set[str]:
        return {field.split(":")[0] for field in self.fields(name)}

    def has_class(self, name: str) -> bool:
        return any(isinstance(node, ast.ClassDef) and node.name == name for node in self._tree.body)

    def _class(self, name: str) -> ast.ClassDef:
        return next(node for node in self._tree.body if isinstance(node, ast.ClassDef) and node.name == name)

    def _function(self, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
        *owner, last = name.split(".")
        body = self._class(owner[0]).body if owner else self._tree.body
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        return next(node for node in body if isinstance(node, functions) and node.name == last)
