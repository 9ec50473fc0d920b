"""Makes the example's virtual environment, once, and prints its interpreter. Needs Python 3.11 or newer, no more.

PyPI's torch for Linux is built for CUDA, and asks for 3 GB of NVIDIA's libraries that no CPU calls. With an index of
CPU builds (``PIP_EXTRA_INDEX_URL``) pip takes those instead, and nothing here is needed. Without one, torch is
installed without its dependencies: the names of the libraries that it is linked to become links to a library that is
there, and functions are bound when they are called, which they never are. If that does not do, all dependencies are
installed.
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
    """Where the environment and pre-trained policies are kept, beside other clones' of the same version."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llm-proxy" / "tiny-grpo"


def environment() -> Path:
    """The environment's directory: another one for other requirements or another Python."""
    made_of = b"".join(
        path.read_bytes() for path in (*sorted(HERE.glob("requirements*.txt")), Path(__file__))
    )
    return cache() / f"venv-{hashlib.sha256(made_of + sys.version.encode()).hexdigest()[:12]}"


def make(directory: Path) -> None:
    """Installs everything; a directory that is not ready is begun anew."""
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
    """Gives each library that is never called the name of one that is loaded anyway."""
    packages = site_packages(directory)
    for name in NEVER_CALLED:
        link = packages / "torch/lib" / name
        link.unlink(missing_ok=True)
        link.symlink_to("libc10.so")
    (packages / "bind-lazily.pth").write_text(LAZY)


def torch_works(directory: Path) -> bool:
    """Whether torch can be imported and learns."""
    program = "import torch; w = torch.ones(2, 2, requires_grad=True); (w @ w).sum().backward()"
    return (
        subprocess.run([directory / "bin/python", "-c", program], capture_output=True, check=False).returncode
        == 0
    )


def site_packages(directory: Path) -> Path:
    """Where pip installs."""
    return directory / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def pip(directory: Path, *what: str) -> None:
    """``pip install``, its output on stderr."""
    command = [directory / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *what]
    # Without its dependencies torch is incomplete for pip, which says so and is right.
    subprocess.run(command, cwd=HERE, stdout=sys.stderr, check=True)


def say(text: str) -> None:
    """Stdout has the interpreter alone."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.version_info < (3, 11):
        sys.exit(
            f"train-demo needs Python 3.11 or newer, and this is {sys.version.split()[0]}: PYTHON=/path/to/python3"
        )
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{environment().name}.lock").open("w") as lock:
        # Another clone may be making it; the lock ends with its process.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (environment() / "ready").exists():
            make(environment())
    print(environment() / "bin/python")
