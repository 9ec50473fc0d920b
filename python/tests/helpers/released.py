"""Parts of a trainer's released wheel, unchanged, without the requirements of the other parts, such as a GPU."""

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


def get_wheel(requirement: str) -> Path:
    """Returns the wheel of ``name==version``, which is downloaded from PyPI the first time."""
    name = requirement.replace("==", "-").replace("-", "_").rsplit("_", 1)
    pattern = f"{name[0]}-{name[1]}-*.whl"
    if not [*WHEELS.glob(pattern)]:
        # These parts also run on versions of Python that the wheel does not support.
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


def load_part(requirement: str, path: str, *names: str) -> ModuleType:
    """Returns a module with these classes, functions and constants of one file; fakes replace missing imports."""
    with zipfile.ZipFile(get_wheel(requirement)) as wheel:
        tree = ast.parse(wheel.read(path).decode())
    typing_only = [
        node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node)
    ]
    tree.body = [*(part for node in typing_only for part in node.body), *tree.body]
    module = ModuleType(path.removesuffix(".py").replace("/", "."))
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            _import(node, module)
        elif _get_name(node) in names:
            exec(compile(ast.Module([node], []), path, "exec", dont_inherit=True), module.__dict__)
    missing = [name for name in names if not hasattr(module, name)]
    assert not missing, f"{requirement} has no {missing} in {path}"
    return module


class _Absent:
    """Replaces a class, a type or a default of a package that is not installed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...


def _import(node: ast.Import | ast.ImportFrom, module: ModuleType) -> None:
    try:
        exec(compile(ast.Module([node], []), "<import>", "exec"), module.__dict__)
    except ImportError:
        for alias in node.names:
            setattr(module, alias.asname or alias.name.split(".")[0], _Absent)


def _get_name(node: ast.stmt) -> str | None:
    if isinstance(node, ast.AnnAssign | ast.Assign):
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        return target.id if isinstance(target, ast.Name) else None
    return getattr(node, "name", None)
