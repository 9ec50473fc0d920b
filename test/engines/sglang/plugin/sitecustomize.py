"""Loaded by every Python process that has this folder on its PYTHONPATH, including those that SGLang spawns.
Replaces compiled kernels that no CPU package has by dummies, and installs the log of the core.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from typing import Any

DUMMY_PACKAGES = ("sgl_kernel", "IPython")
LOGGED_MODULE = "sglang.srt.managers.tokenizer_manager"


class DummyAttribute:
    """A dummy that raises an error when it is called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> DummyAttribute:
        if name.startswith("__"):
            raise AttributeError(name)
        return DummyAttribute(f"{self.__name__}.{name}")

    def __call__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError(f"{self.__name__} is not available on a CPU")


class DummyModule(types.ModuleType):
    __path__: list[str] = []
    __all__: list[str] = []

    def __getattr__(self, name: str) -> DummyAttribute:
        if name.startswith("__"):
            raise AttributeError(name)
        return DummyAttribute(f"{self.__name__}.{name}")


class DummyFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in DUMMY_PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return DummyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class LogInstaller(importlib.abc.MetaPathFinder):
    """Installs the log when the module that it patches is imported."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name != LOGGED_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            run(module)
            from sglang_core_log import install_log

            install_log(module.TokenizerManager)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.append(DummyFinder())
if os.environ.get("CORE_LOG"):
    sys.meta_path.insert(0, LogInstaller())
