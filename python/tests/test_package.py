"""The distributions, installed without the repository."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from helpers.environment import HAS_UV, create_environment, install

PROJECT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--outdir", str(folder), str(PROJECT)]
    if HAS_UV:
        build += ["--installer", "uv"]
    subprocess.run(build, check=True, capture_output=True, timeout=170)
    return folder


@pytest.mark.timeout(180)
def test_the_wheel_has_metadata_and_only_the_package(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata_name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(metadata_name).decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload()
    assert "llm_proxy_verl/py.typed" in names
    assert "llm_proxy/py.typed" in names
    assert {name.split("/")[0] for name in names} == {
        "llm_proxy",
        "llm_proxy_verl",
        metadata_name.split("/")[0],
    }


@pytest.mark.timeout(180)
def test_the_sdist_has_neither_tests_nor_files_of_tools(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert tops <= {"src", "examples", "LICENSE", "README.md", "PKG-INFO", "pyproject.toml", ".gitignore"}
    assert {"src", "LICENSE", "PKG-INFO"} <= tops


@pytest.mark.timeout(180)
def test_the_wheel_works_in_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    python = create_environment(tmp_path / "environment")
    for requirement, module in ((str(wheel), "llm_proxy"), (f"{wheel}[verl]", "llm_proxy_verl.process")):
        install(python, requirement)
        program = f"import {module}; print('imported')"
        done = subprocess.run(
            [python, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path
        )
        assert done.stdout == "imported\n"
