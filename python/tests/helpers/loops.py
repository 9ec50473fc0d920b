"""Agent loops, created as verl creates them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import verl
from verl.experimental.agent_loop.agent_loop import DictConfigWrap

from helpers.proxy import REPOSITORY, Proxy
from helpers.rollout_servers import Config, RolloutServers, Tokenizer, trainer_config
from llm_proxy_verl.agent_loop import RemoteAgentLoop

EMBEDDED_MODEL = REPOSITORY / "src" / "embedded" / "model"
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


def is_fake_verl() -> bool:
    return "fakes" in Path(str(verl.__file__)).parts


def tokenizer() -> Any:
    if is_fake_verl():
        return Tokenizer()
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(EMBEDDED_MODEL)


def make_loop(
    servers: RolloutServers,
    proxy: Proxy,
    *,
    config: Config | None = None,
    client: Any = None,
    **options: Any,
) -> RemoteAgentLoop:
    """Creates the loop of one sample; `options` are further options of its `remote_agent` section."""
    config = config or trainer_config()
    where = {"proxy_urls": [proxy.url], "rollout_servers": [proxy.rollouts_url]}
    return RemoteAgentLoop(
        trainer_config=DictConfigWrap(config=config),
        server_manager=client or servers.client(config),
        tokenizer=tokenizer(),
        processor=None,
        dataset_cls=None,
        data_config=DictConfigWrap(config.data),
        name="remote_agent",
        remote_agent={"retry_base_delay": 0.01, **where, **options},
    )


def sample(task: Path, **fields: Any) -> dict[str, Any]:
    """Creates a row of a dataset."""
    task.mkdir(exist_ok=True)
    prompt = [{"role": "user", "content": "Look around."}]
    return {"raw_prompt": prompt, "instance_id": task.name, "local_task_path": str(task), **fields}


def get_metadata(output: Any) -> dict[str, Any]:
    """Returns the metadata of an output."""
    metadata: dict[str, Any] = output.extra_fields["remote_agent"]
    return metadata
