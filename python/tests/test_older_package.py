"""The package of earlier versions, with its own tests, against today's proxy, and today's package against the proxy of
an earlier version: trainers are not updated with it.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from helpers.proxy import REPOSITORY

#: The sources of this package. Its tests read the docs, and the model's tokenizer where verl itself is installed.
SOURCES = ["python/src", "python/tests", "python/pyproject.toml", "docs"]
PROGRAM = ["bin", "src", "package.json", "tsconfig.json"]
#: The last commit before the public names of 0.2.0.
BEFORE_NAMES = "c7762b7f"
CLIENT_TESTS = ["tests/test_client.py", "tests/test_rollout_client.py", "tests/test_forest.py"]
VERL_TESTS = ["tests/test_worker.py", "tests/test_agent_loop.py"]
#: Both directions, and two earlier versions, are tested with FULL=1.
IS_FULL = os.environ.get("FULL") == "1"
only_full = pytest.mark.skipif(not IS_FULL, reason="runs with FULL=1")
#: The first two, of which one is the former name, compare the text of a warning, which differs between versions. The
#: third needs a proxy that records an unknown step as unknown; earlier ones record the step of an earlier turn.
DESELECTED = (
    "not test_an_agent_that_makes_no_call_gives_a_row"
    " and not test_an_agent_without_requests_results_in_a_masked_row"
    " and not test_a_row_of_unknown_steps"
)


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, check=False)


def extract(commit: str, sources: list[str], directory: Path) -> None:
    """Extracts sources of a commit; skips the test if this clone does not have it."""
    if _git("cat-file", "-e", f"{commit}^{{tree}}").returncode != 0:
        pytest.skip(f"the history of this clone does not reach {commit}")
    archive = _git("archive", commit, *sources)
    assert archive.returncode == 0, archive.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(directory)


def run(directory: Path, *arguments: str, **variables: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(directory / "src"), **variables}
    command = [sys.executable, *arguments]
    result = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("commit", "sources", "tests"),
    [
        pytest.param("9fc4fe7", ["src/engine/embedded/model"], VERL_TESTS, marks=only_full),
        (
            BEFORE_NAMES,
            ["src/embedded/model", "src/proxy/engines/port/expected-tokenizer.ts"],
            [*VERL_TESTS, *CLIENT_TESTS] if IS_FULL else ["tests/test_agent_loop.py", *CLIENT_TESTS[:2]],
        ),
    ],
)
def test_the_package_of_an_earlier_version_passes_its_tests(
    commit: str, sources: list[str], tests: list[str], tmp_path: Path
) -> None:
    extract(commit, [*SOURCES, *sources], tmp_path)
    # The proxy that they start is today's.
    (tmp_path / "bin").symlink_to(REPOSITORY / "bin")
    old = tmp_path / "python"
    # Runners were a part of the package then.
    if commit == "9fc4fe7":
        run(old, "-c", "import llm_proxy_verl.runners.harbor")
    run(old, "-m", "pytest", "-p", "no:cacheprovider", "-x", "-k", DESELECTED, *tests)


@only_full
@pytest.mark.timeout(600)
def test_this_package_passes_its_tests_with_the_proxy_of_an_earlier_version(tmp_path: Path) -> None:
    extract(BEFORE_NAMES, PROGRAM, tmp_path)
    (tmp_path / "node_modules").symlink_to(REPOSITORY / "node_modules")
    launcher = str(tmp_path / "bin" / "llm-proxy")
    tests = ["tests/test_agent_loop.py", *CLIENT_TESTS]
    run(
        REPOSITORY / "python",
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-x",
        "-k",
        DESELECTED,
        *tests,
        LLM_PROXY_LAUNCHER=launcher,
    )
