"""The options of a ``RemoteAgentLoop``: from the ``remote_agent`` section of its YAML entry, else the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from . import values
from .errors import ConfigError
from .session_urls import agent_facing_url

RunnerName = Literal["harbor", "command", "http", "agentcore"]


def option(read: Callable[[object], Any], *env: str, default: Any = None) -> Any:
    """A field of the configuration: how its value is read, and which environment variables may hold it."""
    metadata = {"read": read, "env": env}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class RemoteAgentConfig:
    """Durations are in seconds. docs/verl.md explains each option."""

    # The proxy
    #: Base URLs; of several, one is chosen per rollout.
    proxy_urls: tuple[str, ...] = option(values.base_urls, "PROXY_SERVER_URL", default=())
    #: For sessions; of several the first is used.
    admin_key: tuple[str, ...] = option(values.keys, "LLM_PROXY_ADMIN_KEY", default=())
    #: For the worker; of several the next is tried when one is refused.
    worker_key: tuple[str, ...] = option(values.keys, "LLM_PROXY_WORKER_KEY", default=())
    #: Address under which agents reach the proxy, with a port if it is another one than the proxy URL's.
    agent_host: str | None = option(values.text, "LLM_PROXY_IP")
    #: Whether this process lends the proxy verl's engines; ``None``: if the proxy is in relay mode.
    worker: bool | None = option(values.switch, "REMOTE_AGENT_WORKER")
    worker_concurrency: int = option(values.integer(1), "REMOTE_AGENT_WORKER_CONCURRENCY", default=1024)

    # The agent
    runner: RunnerName = option(
        values.one_of("harbor", "command", "http", "agentcore"), "REMOTE_AGENT_RUNNER", default="harbor"
    )
    model_name: str | None = option(values.text, "REMOTE_MODEL_NAME")
    agent_name: str | None = option(values.text, "REMOTE_AGENT_NAME")
    agent_import_path: str | None = option(values.text, "REMOTE_AGENT_IMPORT_PATH")
    #: Whether an agent with a key of its own is heard on its own record.
    trust_agent: bool = option(values.switch, "LLM_PROXY_TRUST_AGENT", default=False)
    agent_kwargs: dict[str, Any] = option(values.json_object, "REMOTE_AGENT_KWARGS", default={})
    environment_overrides: dict[str, Any] = option(
        values.json_object, "REMOTE_AGENT_ENVIRONMENT_OVERRIDES", default={}
    )
    environment_kwargs: dict[str, Any] = option(
        values.json_object, "REMOTE_AGENT_ENVIRONMENT_KWARGS", default={}
    )

    # Retries
    #: How often an agent that failed is run again.
    max_retries: int = option(values.integer(0), "REMOTE_AGENT_MAX_RETRIES", default=3)
    #: Before the first retry; it doubles with each one.
    retry_base_delay: float = option(values.seconds, "REMOTE_AGENT_RETRY_BASE_DELAY", default=2.0)
    #: An agent that ran out of time has failed (``retry``), or what it recorded trains as it is (``keep``).
    on_time_limit: Literal["retry", "keep"] = option(
        values.one_of("retry", "keep"), "LLM_PROXY_ON_TIME_LIMIT", default="retry"
    )

    # Tasks
    dataset_dirs: tuple[str, ...] = option(values.texts(":,"), "HARBOR_DATASET_DIRS", default=())
    task_path_template: str | None = option(values.text, "REMOTE_AGENT_TASK_PATH_TEMPLATE")

    # Harbor
    harbor_url: str | None = option(values.base_url, "HARBOR_SERVER_URL")
    harbor_timeout: float = option(values.seconds, "HARBOR_TIMEOUT", default=1800.0)

    # Command
    command: tuple[str, ...] = option(values.argv, "REMOTE_AGENT_COMMAND", default=())
    verifier: tuple[str, ...] = option(values.argv, "REMOTE_AGENT_VERIFIER", default=())
    #: Around both; ``auto``: bubblewrap where it works.
    sandbox: Literal["auto", "bwrap", "none"] = option(
        values.one_of("auto", "bwrap", "none"), "REMOTE_AGENT_SANDBOX", default="auto"
    )
    #: Directories that programs in the sandbox may read though they are in the home or another private place.
    sandbox_paths: tuple[str, ...] = option(values.texts(":,"), "REMOTE_AGENT_SANDBOX_PATHS", default=())
    #: Variables of the trainer's environment that the verifier gets, such as a judge's key.
    verifier_env: tuple[str, ...] = option(values.texts(","), "REMOTE_AGENT_VERIFIER_ENV", default=())
    #: Columns of the row that only the verifier sees. verl's scripts write the ground truth into ``reward_model``, and
    #: worked solutions into ``extra_info``; GSM8K and MATH have ``answer`` and ``solution``, SWE-bench the patches.
    hidden_columns: tuple[str, ...] = option(
        values.texts(","),
        "LLM_PROXY_HIDE_COLUMN",
        default=("reward_model", "extra_info", "answer", "solution", "ground_truth", "patch", "test_patch"),
    )
    #: Of the agent's command, of its verifier, of an agent that a webhook started, and of a session of AgentCore.
    agent_timeout: float = option(values.seconds, "REMOTE_AGENT_TIMEOUT", default=1800.0)

    # HTTP
    webhook_url: str | None = option(values.http_url, "REMOTE_AGENT_WEBHOOK_URL")

    # AgentCore
    agentcore_arn: str | None = option(values.text, "LLM_PROXY_AGENTCORE_ARN")
    #: Name of the runtime's endpoint.
    agentcore_qualifier: str = option(values.text, "LLM_PROXY_AGENTCORE_QUALIFIER", default="DEFAULT")
    #: How results come back; ``None``: ``sqs`` if there is a queue, ``s3`` if there is a bucket, else ``envelope``.
    agentcore_results: Literal["s3", "sqs", "envelope"] | None = option(
        values.one_of("s3", "sqs", "envelope"), "LLM_PROXY_RESULTS"
    )
    agentcore_bucket: str | None = option(values.text, "LLM_PROXY_AGENTCORE_BUCKET")
    #: URL of the queue that S3 tells of results.
    agentcore_queue: str | None = option(values.http_url, "LLM_PROXY_AGENTCORE_QUEUE")
    #: First part of the results' keys; ``None``: a new one for each process.
    agentcore_experiment: str | None = option(values.text, "LLM_PROXY_AGENTCORE_EXPERIMENT")
    #: Calls a second of this process: starts, stops and polls together.
    agentcore_tps: float = option(values.number(0.1), "LLM_PROXY_AGENTCORE_TPS", default=25.0)
    #: Of this process, at a time.
    agentcore_sessions: int = option(values.integer(1), "LLM_PROXY_AGENTCORE_SESSIONS", default=500)
    #: A folder that remembers which sessions were started and not stopped.
    agentcore_ledger: str = option(values.text, "LLM_PROXY_AGENTCORE_LEDGER", default="./agentcore-sessions")

    #: Between two lines that tell how sessions are getting on; 0 for none.
    agentcore_progress: float = option(values.seconds, "LLM_PROXY_AGENTCORE_PROGRESS", default=30.0)

    # What verl gets
    #: Who judges: the agent's side (a rollout without a reward gets 0), or verl's reward function.
    reward: Literal["agent", "verl"] = option(
        values.one_of("agent", "verl"), "REMOTE_AGENT_REWARD", default="agent"
    )
    #: All rows of a rollout, or its longest; ``auto``: all, where verl takes several.
    rows: Literal["auto", "all", "longest"] = option(
        values.one_of("auto", "all", "longest"), "REMOTE_AGENT_ROWS", default="auto"
    )

    #: No option: the files that options name as ``@path``, which agents must not read.
    key_files: tuple[str, ...] = ()

    @classmethod
    def load(
        cls, options: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None
    ) -> RemoteAgentConfig:
        """Reads every option: ``options`` go before the environment.

        :raises ConfigError: that names the option or the variable
        """
        given = values.plain(options or {})
        environment = os.environ if env is None else env
        fields = {spec.name: spec.metadata for spec in cls.__dataclass_fields__.values() if spec.metadata}
        unknown = sorted(set(given) - set(fields))
        if unknown:
            raise ConfigError(f"remote_agent has no option {unknown[0]!r}; there are {', '.join(fields)}")
        found: dict[str, Any] = {}
        for name, metadata in fields.items():
            source = next((variable for variable in metadata["env"] if environment.get(variable)), None)
            if given.get(name) is not None:
                found[name] = _read(f"remote_agent.{name}", metadata["read"], given[name])
            elif source is not None:
                found[name] = _read(source, metadata["read"], environment[source])
        named = [given.get(name) for name, metadata in fields.items() if metadata["read"] is values.keys]
        files = tuple(key[1:] for key in named if isinstance(key, str) and key.startswith("@"))
        config = cls(**found, key_files=files)
        config._check()
        return config

    def _check(self) -> None:
        if not self.proxy_urls:
            raise ConfigError("a rollout needs a proxy: give remote_agent.proxy_urls or PROXY_SERVER_URL")
        agent_facing_url(self.proxy_urls[0], self.agent_host)
        if self.runner == "harbor" and self.harbor_url is None:
            raise ConfigError(
                "the harbor runner needs a server: give remote_agent.harbor_url or HARBOR_SERVER_URL"
            )
        if self.runner == "command" and not self.command:
            raise ConfigError("the command runner needs remote_agent.command or REMOTE_AGENT_COMMAND")
        if self.runner == "http" and self.webhook_url is None:
            raise ConfigError("the http runner needs remote_agent.webhook_url or REMOTE_AGENT_WEBHOOK_URL")
        if self.runner == "agentcore" and self.agentcore_arn is None:
            raise ConfigError(
                "the agentcore runner needs remote_agent.agentcore_arn or LLM_PROXY_AGENTCORE_ARN"
            )


def _read(source: str, read: Callable[[object], Any], value: object) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ConfigError(f"{source} {error}") from None
