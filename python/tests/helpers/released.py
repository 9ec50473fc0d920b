"""Parts of a trainer's released wheel, run as they are, without what the rest of it needs: a GPU, much else."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parents[2]
WHEELS = Path(os.environ.get("TRAINER_WHEELS", HERE / ".venv-verl" / "wheels"))


def wheel_of(requirement: str) -> Path:
    """The wheel of ``name==version``, from PyPI the first time."""
    name = requirement.replace("==", "-").replace("-", "_").rsplit("_", 1)
    pattern = f"{name[0]}-{name[1]}-*.whl"
    if not [*WHEELS.glob(pattern)]:
        # Versions of Python that it was not made for read these parts all the same.
        download = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--ignore-requires-python",
        ]
        subprocess.run([*download, "--dest", str(WHEELS), requirement], check=True, timeout=120)
    (wheel,) = WHEELS.glob(pattern)
    return wheel


def part_of(requirement: str, path: str, *names: str) -> ModuleType:
    """A module with these classes, functions and constants of one file; what cannot be imported is a stand-in."""
    with zipfile.ZipFile(wheel_of(requirement)) as wheel:
        tree = ast.parse(wheel.read(path).decode())
    typing_only = [
        node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node)
    ]
    tree.body = [*(part for node in typing_only for part in node.body), *tree.body]
    module = ModuleType(path.removesuffix(".py").replace("/", "."))
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            _import(node, module)
        elif _name_of(node) in names:
            exec(compile(ast.Module([node], []), path, "exec", dont_inherit=True), module.__dict__)
    missing = [name for name in names if not hasattr(module, name)]
    assert not missing, f"{requirement} has no {missing} in {path}"
    return module


class _Absent:
    """In the place of a class, a type or a default of what is not installed; who uses it gets nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...


def _import(node: ast.Import | ast.ImportFrom, module: ModuleType) -> None:
    try:
        exec(compile(ast.Module([node], []), "<import>", "exec"), module.__dict__)
    except ImportError:
        for alias in node.names:
            setattr(module, alias.asname or alias.name.split(".")[0], _Absent)


def _name_of(node: ast.stmt) -> str | None:
    if isinstance(node, ast.AnnAssign | ast.Assign):
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        return target.id if isinstance(target, ast.Name) else None
    return getattr(node, "name", None)
