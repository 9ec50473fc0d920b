"""Loaded by every Python process that has this folder on its PYTHONPATH, including those that SGLang spawns: it
replaces
compiled kernels that no package for CPUs has by dummies, and installs the log of the core.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from typing import Any

STOOD_IN = ("sgl_kernel", "IPython")
LOGGED = "sglang.srt.managers.tokenizer_manager"


class Missing:
    """A dummy that may be read and compared, but not called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")

    def __call__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError(f"{self.__name__} is not there on a CPU")


class StandIn(types.ModuleType):
    __path__: list[str] = []
    __all__: list[str] = []

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in STOOD_IN:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class Logged(importlib.abc.MetaPathFinder):
    """Installs the log once the module that it patches is imported."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name != LOGGED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            run(module)
            from sglang_core_log import log

            log(module.TokenizerManager)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.append(StandIns())
if os.environ.get("CORE_LOG"):
    sys.meta_path.insert(0, Logged())
