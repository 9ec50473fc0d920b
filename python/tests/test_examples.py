"""The examples name existing options of this package, and of verl in every supported version."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_proxy_verl.config import RemoteAgentConfig
from verl_wheels import VERSIONS, wheel_text

EXAMPLES = Path(__file__).parents[1] / "examples"
#: The file with every option of verl's main_ppo.
CONFIG = "verl/trainer/config/_generated_ppo_trainer.yaml"


def get_overrides(tmp_path: Path) -> list[str]:
    """Returns the arguments that the launch script passes to verl, with a fake python3 that prints them."""
    fake = tmp_path / "python3"
    fake.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'import sys; print(chr(10).join(sys.argv[1:]))' \"$@\"\n"
    )
    fake.chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "MODEL": "m",
        "DATA": "/data",
        "PROXY_SERVER_URL": "http://proxy:8080",
        "LLM_PROXY_ADMIN_KEY": "@/run/secrets/admin",
    }
    script = subprocess.run(
        [EXAMPLES / "train_grpo.sh", "trainer.nnodes=2"], env=env, capture_output=True, text=True, check=True
    )
    module, *overrides = script.stdout.split("\n")[1:-1]
    assert module == "verl.trainer.main_ppo"
    return overrides


@pytest.mark.parametrize("version", VERSIONS)
def test_verl_knows_every_option_of_the_launch_script(version: str, tmp_path: Path) -> None:
    config = yaml.safe_load(wheel_text(version, CONFIG))
    for override in get_overrides(tmp_path):
        if override.startswith("+"):
            assert re.match(r"\+ray_kwargs\.ray_init\.runtime_env\.env_vars\.[A-Z_]+='", override)
            assert "ray_init" in config["ray_kwargs"]
            continue
        _assert_known(config, override)


@pytest.mark.parametrize("version", VERSIONS)
def test_verl_has_every_option_that_is_documented_as_equivalent(version: str) -> None:
    text = (EXAMPLES.parents[1] / "docs" / "verl.md").read_text()
    table = text.split("<!-- options of verl that do the same -->")[1].split("<!-- /options")[0]
    overrides = re.findall(r"`([\w.]+=[^`]+)`", table)
    assert len(overrides) > 10
    config = yaml.safe_load(wheel_text(version, CONFIG))
    for override in overrides:
        _assert_known(config, override)


def _assert_known(config: Any, override: str) -> None:
    node: Any = config
    for part in override.split("=")[0].split("."):
        assert isinstance(node, dict), override
        assert part in node, override
        node = node[part]


def test_the_launch_script_forwards_the_environment_and_further_overrides(tmp_path: Path) -> None:
    overrides = get_overrides(tmp_path)
    env_vars = "+ray_kwargs.ray_init.runtime_env.env_vars"
    assert f"{env_vars}.PROXY_SERVER_URL='http://proxy:8080'" in overrides
    assert f"{env_vars}.LLM_PROXY_ADMIN_KEY='@/run/secrets/admin'" in overrides
    assert overrides[-1] == "trainer.nnodes=2"


@pytest.mark.parametrize("name", ["remote_agent.yaml", "claude_code.yaml"])
def test_the_example_of_an_agent_loop_loads(name: str) -> None:
    (entry,) = yaml.safe_load((EXAMPLES / name).read_text())
    assert entry["name"] == "remote_agent"
    assert entry["_target_"] == "llm_proxy_verl.agent_loop.RemoteAgentLoop"
    RemoteAgentConfig.load(entry["remote_agent"], env={"PROXY_SERVER_URL": "http://proxy:8080"})


def test_the_documented_options_are_the_existing_ones() -> None:
    text = (EXAMPLES.parents[1] / "docs" / "verl.md").read_text()
    table = text.split("<!-- options of remote_agent -->")[1].split("<!-- /options")[0].strip().splitlines()
    documented = [tuple(cell.strip() for cell in row.split("|")[1:4]) for row in table[2:]]
    assert documented == [
        _documented(spec) for spec in dataclasses.fields(RemoteAgentConfig) if spec.metadata
    ]


def _documented(spec: dataclasses.Field[Any]) -> tuple[str, str, str]:
    default = {} if spec.default is dataclasses.MISSING else spec.default
    text = ",".join(default) if isinstance(default, tuple) else default
    shown = "" if text in (None, "") else f"`{text}`"
    return (f"`{spec.name}`", ", ".join(f"`{name}`" for name in spec.metadata["env"]), shown)


def test_options_in_comments_of_the_example_load_too() -> None:
    text = (EXAMPLES / "remote_agent.yaml").read_text()
    options = dict(re.findall(r"^    # (\w+): (.*?)(?:  +#.*)?$", text, flags=re.MULTILINE))
    assert len(options) > 6
    loaded = {name: yaml.safe_load(value) for name, value in options.items()}
    RemoteAgentConfig.load(loaded, env={})
