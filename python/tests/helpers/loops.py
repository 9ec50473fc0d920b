"""Agent loops as verl makes them."""

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


def is_standin() -> bool:
    return "standin" in Path(str(verl.__file__)).parts


def tokenizer() -> Any:
    if is_standin():
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
    """The loop of one sample; `options` are more of its `remote_agent` section."""
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
    """A row of a dataset."""
    task.mkdir(exist_ok=True)
    prompt = [{"role": "user", "content": "Look around."}]
    return {"raw_prompt": prompt, "instance_id": task.name, "local_task_path": str(task), **fields}


def facts(output: Any) -> dict[str, Any]:
    """What an output tells beside its row."""
    about: dict[str, Any] = output.extra_fields["remote_agent"]
    return about
