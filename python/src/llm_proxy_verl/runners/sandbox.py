"""What an agent, or what judges it, can see and change of this machine while it runs.

A sandbox of bubblewrap (https://github.com/containers/bubblewrap), made of the user namespaces of Linux, so that no
privilege is needed. docs/rollouts.md says what it defends against and what not; the command runner of llm-proxy itself
makes the same one.
"""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import ConfigError

SandboxMode = Literal["auto", "bwrap", "none"]

_log = logging.getLogger("llm_proxy_verl")

#: Where the system's own programs and settings are. Whatever else there is on a machine is private until it is shown.
_SYSTEM = frozenset(
    f"/{name}"
    for name in (
        *("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr"),
        *("etc", "nix", "gnu", "sys", "proc", "dev"),
    )
)
#: Sees the system, its own processes, and the network. A SIGTERM is for the program, which may have things to finish:
#: bubblewrap would end at once, and everything in it.
_BASE = (
    *("env", "--ignore-signal=TERM", "bwrap", "--die-with-parent"),
    *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL"),
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
)
_PROGRAM = ("--", "env", "--default-signal=TERM")
#: Shells give it to a command that is not there.
_NOT_THERE = 127


@dataclass(frozen=True)
class View:
    """What one program sees beside the system's programs."""

    #: It works here, and may write here and in ``writable`` alone.
    cwd: Path
    writable: Sequence[Path] = ()
    #: Shown read-only, wherever they are.
    readable: Sequence[Path] = ()
    #: Shown empty, though they are in what is readable.
    masked: Sequence[Path] = ()


class Sandbox:
    """Wraps commands, or leaves them as they are where there is no sandbox.

    :raises ConfigError: if bubblewrap was asked for by name and does not work
    """

    def __init__(self, mode: SandboxMode, visible: Sequence[str] = (), hidden: Sequence[str] = ()) -> None:
        self._visible, self._hidden = visible, hidden
        #: Why programs run without one; ``None`` if they run in one.
        self.missing = "it is switched off" if mode == "none" else _why_bubblewrap_fails()
        if self.missing is None:
            return
        if mode == "bwrap":
            raise ConfigError(f"agents cannot be run in bubblewrap: {self.missing}")
        _log.warning("trusted agents only: there is no sandbox around them (%s)", self.missing)

    def wrap(self, command: Sequence[str], view: View, status: int) -> list[str]:
        """The command that runs this one so that it sees no more than the view.

        :param status: descriptor that gets whether the command ran at all: bubblewrap's own failure has exit code 1,
            as many a program's verdict
        """
        if self.missing is not None:
            return list(command)
        # What comes later goes before what came earlier: private places, what of them is needed, what of that is not.
        mounts = [
            *_each("--tmpfs", _private_roots()),
            *_each("--ro-bind", _program_directories() + _existing(self._visible), twice=True),
            *_hiding(self._hidden),
            *_each("--ro-bind", _existing(view.readable), twice=True),
            *_hiding(view.masked),
            *_each("--bind", _existing([view.cwd, *view.writable]), twice=True),
        ]
        return [
            *_BASE,
            "--json-status-fd",
            str(status),
            *mounts,
            "--chdir",
            str(view.cwd),
            *_PROGRAM,
            *command,
        ]


def _why_bubblewrap_fails() -> str | None:
    """Looks whether it works here: containers often forbid its namespaces."""
    try:
        command = [*_BASE, "--json-status-fd", "1", *_PROGRAM, "true"]
        probe = subprocess.run(command, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if probe.returncode == _NOT_THERE:
        return "bwrap is not installed"
    said = probe.stderr.decode(errors="replace").strip()[:200]
    return None if probe.returncode == 0 else said or f"bwrap ended with exit code {probe.returncode}"


def _each(flag: str, paths: Iterable[Path], *, twice: bool = False) -> list[str]:
    return [word for path in paths for word in (flag, str(path), *([str(path)] if twice else []))]


def _hiding(paths: Iterable[str | Path]) -> list[str]:
    """An empty directory in the place of a directory, nothing in the place of a file."""
    there = _existing(paths)
    return [
        word
        for path in there
        for word in (("--tmpfs", str(path)) if path.is_dir() else ("--ro-bind", "/dev/null", str(path)))
    ]


def _private_roots() -> list[Path]:
    others = [path for path in Path("/").iterdir() if path.is_dir() and str(path) not in _SYSTEM]
    roots = set(_existing([*others, "/dev/shm", tempfile.gettempdir(), Path.home()])) - {Path("/")}
    return sorted(path for path in roots if not roots & set(path.parents))


def _program_directories() -> list[Path]:
    """Programs of the user are in private places: directories of PATH there, with what those of a ``bin`` belong to."""
    roots = set(_private_roots())

    def is_private(path: Path) -> bool:
        return bool(roots & set(path.parents))

    def is_too_much(path: Path) -> bool:
        return path in roots or path.name == ".local" or path == Path.home()

    found = [path for path in _existing([os.getcwd()]) if is_private(path) and not is_too_much(path)]
    for path in filter(
        is_private, _existing(filter(os.path.isabs, os.environ.get("PATH", "").split(os.pathsep)))
    ):
        prefix = path.parent
        whole = path.name == "bin" and not is_too_much(prefix)
        found += [prefix] if whole else [path, *_existing([prefix / "lib"])]
    return [path for path in found if not is_too_much(path)]


def _existing(paths: Iterable[str | Path]) -> list[Path]:
    """Those that are there, links resolved: nothing can be mounted on a link."""
    return [Path(path).resolve() for path in paths if os.path.exists(path)]
