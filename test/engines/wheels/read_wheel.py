"""Reads the sources in a wheel without installing or running them, and writes a description of its HTTP API as JSON.

python read_wheel.py WHEEL OUT CLASS...

Modules are found by what they define (a route, one of these classes or a base of one), because releases move them to
other packages. `routes`: their paths. `classes`: by name, the fields that are declared in the class or in its bases,
each with its default as source text, or null. `names`: every name, keyword and text in these modules.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

VERBS = ("get", "post", "put", "delete", "api_route")
ROUTE = re.compile(rf"^\s*@\w+\.({'|'.join(VERBS)})\(", re.MULTILINE)
CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


def sources(wheel: str, wanted: Iterable[str]) -> Iterator[ast.Module]:
    """Parses the modules that define a route, a wanted class, or a base of a class in a parsed module."""
    with zipfile.ZipFile(wheel) as archive:
        texts = {path: archive.read(path) for path in archive.namelist() if path.endswith(".py")}
    defining: dict[str, set[str]] = defaultdict(set)
    pending: set[str] = set()
    for path, source in texts.items():
        text = source.decode()
        for name in CLASS.findall(text):
            defining[name].add(path)
        if ROUTE.search(text):
            pending.add(path)
    pending.update(*(defining[name] for name in wanted))
    seen: set[str] = set()
    while pending:
        path = pending.pop()
        seen.add(path)
        module = ast.parse(texts[path])
        yield module
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                pending.update(*(defining[base] - seen for base in get_bases(node)))


def get_bases(node: ast.ClassDef) -> list[str]:
    """Returns the names of the bases, without the module and the parameters of a generic class."""
    return [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]


def get_route(decorator: ast.expr) -> str | None:
    """Returns the path of ``@router.post("/path")`` or ``@app.get("/path")``."""
    if not isinstance(decorator, ast.Call) or not isinstance(decorator.func, ast.Attribute):
        return None
    if decorator.func.attr not in VERBS or not decorator.args:
        return None
    path = decorator.args[0]
    return path.value if isinstance(path, ast.Constant) and isinstance(path.value, str) else None


def get_fields(node: ast.ClassDef) -> dict[str, str | None]:
    """Returns the fields that are declared with a type."""
    return {
        item.target.id: None if item.value is None else ast.unparse(item.value)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def get_parameters(node: ast.ClassDef) -> dict[str, str | None]:
    """Returns the fields that ``__init__`` assigns, which a plain class has."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            arguments = item.args
            without_default: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
            values = [*without_default, *arguments.defaults, *arguments.kw_defaults]
            pairs = list(zip([*arguments.args, *arguments.kwonlyargs], values, strict=True))[1:]
            return {
                argument.arg: None if value is None else ast.unparse(value) for argument, value in pairs
            }
    return {}


def main(wheel: str, out: str, *wanted: str) -> None:
    """Writes the description of the wheel as JSON."""
    routes: set[str] = set()
    names: set[str] = set()
    own: dict[str, dict[str, str | None]] = {}
    bases: dict[str, list[str]] = {}
    for module in sources(wheel, wanted):
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                routes |= {path for each in node.decorator_list if (path := get_route(each))}
            elif isinstance(node, ast.ClassDef):
                # Two modules may have a class of one name: their fields are merged.
                own.setdefault(node.name, {}).update({**get_parameters(node), **get_fields(node)})
                bases.setdefault(node.name, []).extend(get_bases(node))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 100:
                names.add(node.value)
            elif isinstance(node, ast.keyword) and node.arg:
                names.add(node.arg)

    def fields(name: str, seen: frozenset[str] = frozenset()) -> dict[str, str | None]:
        inherited: dict[str, str | None] = {}
        for base in bases.get(name, []):
            if base in own and base not in seen:
                inherited |= fields(base, seen | {name})
        return {**inherited, **own[name]}

    classes = {name: fields(name) for name in own}
    read = {"routes": sorted(routes), "classes": classes, "names": sorted(names)}
    Path(out).write_text(json.dumps(read))


if __name__ == "__main__":
    main(*sys.argv[1:])
