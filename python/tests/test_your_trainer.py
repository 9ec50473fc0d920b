"""The commands of docs/your-trainer.md, unchanged, in an otherwise empty environment."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from helpers.environment import create_environment, install
from helpers.proxy import REPOSITORY, start_proxy

PAGE = (REPOSITORY / "docs" / "your-trainer.md").read_text()


@pytest.mark.timeout(300)
def test_the_commands_of_the_page_produce_arrays(tmp_path: Path) -> None:
    (command,) = re.findall(r"^ {4}pip install (.*)$", PAGE, re.M)
    (program,) = re.findall(r"```python trainer\n(.*?)```", PAGE, re.S)
    python = create_environment(tmp_path / "environment")
    install(python, *command.replace("/path/to/llm-proxy", str(REPOSITORY)).split())
    with start_proxy(tmp_path, mode="local", token_mode=False) as proxy:
        there = program.replace("http://127.0.0.1:8080", proxy.url)
        assert there != program
        done = subprocess.run(
            [python, "-c", there], check=True, capture_output=True, text=True, cwd=tmp_path, timeout=60
        )
    shape, trained = re.fullmatch(r"(\(8, \d+\)) (\d+) \1\n", done.stdout).groups()
    assert int(trained) > 8, shape
