"""Creates the example's virtual environment, once, and prints its interpreter. Requires Python 3.11 or newer.

PyPI's torch for Linux is built for CUDA and requires 3 GB of NVIDIA's libraries, which a CPU never calls. With an index
of CPU builds (``PIP_EXTRA_INDEX_URL``) pip installs those. Without one, torch is installed without its dependencies:
the names of missing libraries become links to a library that exists, and a function is bound when it is called, which
never happens. If torch does not work that way, all dependencies are installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
#: What libtorch_cuda.so of torch 2.15 is linked to, beside what requirements-cpu.txt installs.
NEVER_CALLED = (
    "libcublas.so.13", "libcublasLt.so.13", "libcudnn.so.9", "libcufft.so.12", "libcufile.so.0", "libcupti.so.13",
    "libcusparse.so.12", "libcusparseLt.so.0", "libnccl.so.2", "libnvrtc.so.13",
)  # fmt: skip
LAZY = "import os, sys; sys.setdlopenflags(os.RTLD_LAZY)\n"


def cache() -> Path:
    """Returns the directory of the environment and of pre-trained policies, which all clones share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llm-proxy" / "tiny-grpo"


def environment() -> Path:
    """Returns the environment's directory, which depends on the requirements and the version of Python."""
    made_of = b"".join(
        path.read_bytes() for path in (*sorted(HERE.glob("requirements*.txt")), Path(__file__))
    )
    return cache() / f"venv-{hashlib.sha256(made_of + sys.version.encode()).hexdigest()[:12]}"


def make(directory: Path) -> None:
    """Installs everything; an incomplete directory is cleared first."""
    say(f"Installing PyTorch and the rest into {directory}, once: about 800 MB")
    venv.create(directory, clear=True, with_pip=True)
    pip(directory, "-r", "requirements.txt")
    pip(directory, "--no-deps", "-r", "requirements-torch.txt")
    if not torch_works(directory):
        pip(directory, "--no-deps", "-r", "requirements-cpu.txt")
        link_names(directory)
    if not torch_works(directory):
        say("torch needs NVIDIA's libraries on this machine: about 3 GB more")
        for name in NEVER_CALLED:
            (site_packages(directory) / "torch/lib" / name).unlink(missing_ok=True)
        pip(directory, "-r", "requirements-torch.txt")
    (directory / "ready").touch()


def link_names(directory: Path) -> None:
    """Links the name of each missing library to one that is loaded in any case."""
    packages = site_packages(directory)
    for name in NEVER_CALLED:
        link = packages / "torch/lib" / name
        link.unlink(missing_ok=True)
        link.symlink_to("libc10.so")
    (packages / "bind-lazily.pth").write_text(LAZY)


def torch_works(directory: Path) -> bool:
    """Returns whether torch can be imported and computes gradients."""
    program = "import torch; w = torch.ones(2, 2, requires_grad=True); (w @ w).sum().backward()"
    return (
        subprocess.run([directory / "bin/python", "-c", program], capture_output=True, check=False).returncode
        == 0
    )


def site_packages(directory: Path) -> Path:
    """Returns the directory in which pip installs."""
    return directory / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def pip(directory: Path, *what: str) -> None:
    """Runs ``pip install`` with its output on stderr."""
    command = [directory / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *what]
    # pip warns that torch lacks its dependencies, which is intended.
    subprocess.run(command, cwd=HERE, stdout=sys.stderr, check=True)


def say(text: str) -> None:
    """Prints to stderr, because stdout has the interpreter alone."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.version_info < (3, 11):
        sys.exit(
            f"train-demo needs Python 3.11 or newer, and this is {sys.version.split()[0]}: PYTHON=/path/to/python3"
        )
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{environment().name}.lock").open("w") as lock:
        # Another clone may be creating it; its process releases the lock when it ends.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (environment() / "ready").exists():
            make(environment())
    print(environment() / "bin/python")
