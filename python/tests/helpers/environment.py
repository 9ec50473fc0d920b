"""Virtual environments with only the packages that a test installs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

#: uv takes the arguments of `pip install` and a tenth of its time; an environment with verl itself may lack it.
HAS_UV = importlib.util.find_spec("uv") is not None


def create_environment(folder: Path) -> Path:
    """Creates an empty environment. Returns its interpreter."""
    tool = ["uv", "venv", "--quiet", "--python", sys.executable] if HAS_UV else ["venv"]
    subprocess.run([sys.executable, "-m", *tool, str(folder)], check=True, timeout=120)
    return folder / "bin" / "python"


def install(python: Path, *arguments: str) -> None:
    """Runs `pip install` with these arguments in an environment."""
    if HAS_UV:
        command = [sys.executable, "-m", "uv", "pip", "install", "--python", str(python)]
    else:
        command = [str(python), "-m", "pip", "install"]
    subprocess.run([*command, "--quiet", *arguments], check=True, timeout=150)
