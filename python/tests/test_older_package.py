"""The package of an earlier version, with its own tests, against today's proxy: trainers are not updated with it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from helpers.proxy import REPOSITORY

COMMIT = "9fc4fe7"
#: The tests read the docs, and the model's tokenizer where verl itself is installed.
SOURCES = ["python/src", "python/tests", "python/pyproject.toml", "docs", "src/engine/embedded/model"]
TESTS = ["tests/test_worker.py", "tests/test_agent_loop.py"]


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, check=False)


@pytest.mark.timeout(300)
def test_the_worker_and_the_agent_loop_of_an_earlier_version_pass_their_tests(tmp_path: Path) -> None:
    if _git("cat-file", "-e", f"{COMMIT}^{{tree}}").returncode != 0:
        pytest.skip(f"the history of this clone does not reach {COMMIT}")
    archive = _git("archive", COMMIT, *SOURCES)
    assert archive.returncode == 0, archive.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(tmp_path)
    # The proxy that they start is today's.
    (tmp_path / "bin").symlink_to(REPOSITORY / "bin")
    old = tmp_path / "python"
    environment = {**os.environ, "PYTHONPATH": str(old / "src")}

    def run(*arguments: str) -> None:
        command = [sys.executable, *arguments]
        result = subprocess.run(
            command, cwd=old, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]

    # Runners were a part of the package then.
    run("-c", "import llm_proxy_verl.runners.harbor")
    run("-m", "pytest", "-p", "no:cacheprovider", "-x", *TESTS)
