"""The options of a ``RemoteAgentLoop``, from the ``remote_agent`` section of its YAML entry, else the environment."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from . import values
from .errors import ConfigError

logger = logging.getLogger(__name__)


def option(read: Callable[[object], Any], *env: str, default: Any = None, sent: bool = False) -> Any:
    """Declares a field of the configuration: the parser of its value, and the environment variables for it.

    :param sent: whether it is sent with each rollout, if set, and overrides the rollout server's own option
    """
    return field(default=default, metadata={"read": read, "env": env, "sent": sent})


@dataclass(frozen=True)
class RemoteAgentConfig:
    """Durations are in seconds. docs/verl.md explains each option."""

    # Endpoints
    #: Base URLs; of several, one is chosen per rollout.
    proxy_urls: tuple[str, ...] = option(values.base_urls, "PROXY_SERVER_URL", default=())
    #: The servers of rollouts, if not the proxies.
    rollout_servers: tuple[str, ...] = option(values.base_urls, "LLM_PROXY_ROLLOUT_SERVER", default=())
    #: Keys for rollouts; the first of several is used.
    admin_key: tuple[str, ...] = option(values.keys, "LLM_PROXY_ADMIN_KEY", default=())
    #: Keys for the worker; if one of several is rejected, the next is tried.
    worker_key: tuple[str, ...] = option(values.keys, "LLM_PROXY_WORKER_KEY", default=())
    #: Whether this process offers verl's engines to the proxy; ``None``: if the proxy is in relay mode.
    worker: bool | None = option(values.switch, "REMOTE_AGENT_WORKER")
    worker_concurrency: int = option(values.integer(1), "REMOTE_AGENT_WORKER_CONCURRENCY", default=1024)

    # Overrides of the rollout server's options, if set
    #: Address at which agents reach the proxy, with a port if it differs from the proxy URL's.
    agent_host: str | None = option(values.text, "LLM_PROXY_IP", sent=True)
    model_name: str | None = option(values.text, "REMOTE_MODEL_NAME", sent=True)
    agent_name: str | None = option(values.text, "REMOTE_AGENT_NAME", sent=True)
    agent_import_path: str | None = option(values.text, "REMOTE_AGENT_IMPORT_PATH", sent=True)
    agent_kwargs: dict[str, Any] | None = option(values.json_object, "REMOTE_AGENT_KWARGS", sent=True)
    environment_overrides: dict[str, Any] | None = option(
        values.json_object, "REMOTE_AGENT_ENVIRONMENT_OVERRIDES", sent=True
    )
    environment_kwargs: dict[str, Any] | None = option(
        values.json_object, "REMOTE_AGENT_ENVIRONMENT_KWARGS", sent=True
    )
    #: Whether metadata that an agent with its own key declares for its turns is trusted.
    trust_agent: bool | None = option(values.switch, "LLM_PROXY_TRUST_AGENT", sent=True)
    #: Whether responses continue after their engine request was cut; ``None``: as the proxy is configured.
    continue_responses: bool | None = option(values.switch, "LLM_PROXY_CONTINUE_RESPONSES", sent=True)
    #: Whether tokens of older weights than the newest of their row are masked.
    mask_stale_tokens: bool | None = option(values.switch, "LLM_PROXY_MASK_STALE_TOKENS", sent=True)
    #: How often a failed agent is retried.
    max_retries: int | None = option(values.integer(0), "REMOTE_AGENT_MAX_RETRIES", sent=True)
    #: Delay before the first retry; it doubles with each one.
    retry_base_delay: float | None = option(values.seconds, "REMOTE_AGENT_RETRY_BASE_DELAY", sent=True)
    #: Handling of an agent that timed out: it has failed (``retry``), or its recorded turns are trained (``keep``).
    on_time_limit: Literal["retry", "keep"] | None = option(
        values.one_of("retry", "keep"), "LLM_PROXY_ON_TIME_LIMIT", sent=True
    )

    # Results for verl
    #: The source of rewards: the agent's side (a rollout without a reward gets 0), or verl's reward function.
    reward: Literal["agent", "verl"] = option(
        values.one_of("agent", "verl"), "REMOTE_AGENT_REWARD", default="agent"
    )
    #: All rows of a rollout, or its longest; ``auto``: all, if verl accepts several.
    rows: Literal["auto", "all", "longest"] = option(
        values.one_of("auto", "all", "longest"), "REMOTE_AGENT_ROWS", default="auto"
    )

    @classmethod
    def load(
        cls, options: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None
    ) -> RemoteAgentConfig:
        """Reads every option; ``options`` take precedence over the environment.

        :raises ConfigError: that names the option or the variable
        """
        given = values.to_json_value(options or {})
        environment = os.environ if env is None else env
        fields = {spec.name: spec.metadata for spec in cls.__dataclass_fields__.values()}
        _reject_runner_options(given)
        _warn_about_runner_variables(tuple(name for _, name in _ELSEWHERE.values() if environment.get(name)))
        unknown = sorted(set(given) - set(fields))
        if unknown:
            raise ConfigError(f"remote_agent has no option {unknown[0]!r}; there are {', '.join(fields)}")
        found: dict[str, Any] = {}
        for name, metadata in fields.items():
            values_of = {variable: environment.get(variable) or None for variable in metadata["env"]}
            for source, value in {f"remote_agent.{name}": given.get(name), **values_of}.items():
                if value is not None and name not in found:
                    try:
                        found[name] = metadata["read"](value)
                    except ValueError as error:
                        raise ConfigError(f"{source} {error}") from None
        config = cls(**found)
        if not config.proxy_urls:
            raise ConfigError("a rollout needs a proxy: give remote_agent.proxy_urls or PROXY_SERVER_URL")
        return config

    def sent(self) -> dict[str, Any]:
        """Returns the fields of ``POST /rollouts`` that are set here."""
        names = [spec.name for spec in self.__dataclass_fields__.values() if spec.metadata["sent"]]
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        # The only field whose name contains the unit on the wire.
        delay = given.pop("retry_base_delay", None)
        return given if delay is None else {**given, "retry_base_delay_s": delay}


#: Options of the rollout server: each is a flag of it, and a variable of its environment.
_ELSEWHERE = {
    "runner": ("--runner", "REMOTE_AGENT_RUNNER"),
    "dataset_dirs": ("--dataset-dir", "HARBOR_DATASET_DIRS"),
    "task_path_template": ("--task-path-template", "REMOTE_AGENT_TASK_PATH_TEMPLATE"),
    "harbor_url": ("--harbor-url", "HARBOR_SERVER_URL"),
    "harbor_timeout": ("--harbor-timeout", "HARBOR_TIMEOUT"),
    "command": ("--command", "REMOTE_AGENT_COMMAND"),
    "verifier": ("--verifier", "REMOTE_AGENT_VERIFIER"),
    "sandbox": ("--sandbox", "REMOTE_AGENT_SANDBOX"),
    "sandbox_paths": ("--sandbox-path", "REMOTE_AGENT_SANDBOX_PATHS"),
    "verifier_env": ("--verifier-env", "REMOTE_AGENT_VERIFIER_ENV"),
    "hidden_columns": ("--hide-column", "LLM_PROXY_HIDE_COLUMN"),
    "agent_timeout": ("--time-limit", "REMOTE_AGENT_TIMEOUT"),
    "webhook_url": ("--webhook-url", "REMOTE_AGENT_WEBHOOK_URL"),
    "agentcore_arn": ("--agentcore-arn", "LLM_PROXY_AGENTCORE_ARN"),
    "agentcore_qualifier": ("--agentcore-qualifier", "LLM_PROXY_AGENTCORE_QUALIFIER"),
    "agentcore_results": ("--results", "LLM_PROXY_RESULTS"),
    "agentcore_bucket": ("--agentcore-bucket", "LLM_PROXY_AGENTCORE_BUCKET"),
    "agentcore_queue": ("--agentcore-queue", "LLM_PROXY_AGENTCORE_QUEUE"),
    "agentcore_experiment": ("--agentcore-experiment", "LLM_PROXY_AGENTCORE_EXPERIMENT"),
    "agentcore_tps": ("--agentcore-tps", "LLM_PROXY_AGENTCORE_TPS"),
    "agentcore_sessions": ("--agentcore-sessions", "LLM_PROXY_AGENTCORE_SESSIONS"),
    "agentcore_ledger": ("--agentcore-ledger", "LLM_PROXY_AGENTCORE_LEDGER"),
}


def _reject_runner_options(given: Mapping[str, Any]) -> None:
    for name in sorted(given.keys() & _ELSEWHERE):
        flag, variable = _ELSEWHERE[name]
        raise ConfigError(
            f"remote_agent.{name} is an option of the rollout server, for all of verl's processes: "
            f"set llm-proxy rollout --listen {flag}, or {variable} in its environment"
        )


@functools.cache
def _warn_about_runner_variables(variables: tuple[str, ...]) -> None:
    """Logs, once per process, variables that apply elsewhere.

    They are harmless here: the rollout server may have been started from the same shell.
    """
    if variables:
        logger.warning(
            "%s: read by llm-proxy rollout --listen, which runs the agents, not by verl's processes",
            ", ".join(variables),
        )
