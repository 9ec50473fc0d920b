"""The options of a ``RemoteAgentLoop``, from ``remote_agent`` in its YAML entry or from the environment."""

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
    """Declares an option with the parser of its value and its environment variables.

    :param sent: whether a value is sent with each rollout and overrides the option of the rollout server
    """
    return field(default=default, metadata={"read": read, "env": env, "sent": sent})


@dataclass(frozen=True)
class RemoteAgentConfig:
    """The options of a ``RemoteAgentLoop``; durations are in seconds. docs/verl.md explains each option."""

    # Endpoints
    #: Base URLs of proxies; each rollout uses one of them, chosen at random.
    proxy_urls: tuple[str, ...] = option(values.parse_base_urls, "PROXY_SERVER_URL", default=())
    #: Base URLs of rollout servers; default: the proxies.
    rollout_servers: tuple[str, ...] = option(values.parse_base_urls, "LLM_PROXY_ROLLOUT_SERVER", default=())
    #: Keys for rollouts; only the first is used.
    admin_key: tuple[str, ...] = option(values.parse_keys, "LLM_PROXY_ADMIN_KEY", default=())
    #: Keys for the worker; if a key is rejected, the next is tried.
    worker_key: tuple[str, ...] = option(values.parse_keys, "LLM_PROXY_WORKER_KEY", default=())
    #: Whether this process offers verl's engines to the proxies; ``None``: only to those in relay mode.
    worker: bool | None = option(values.parse_boolean, "REMOTE_AGENT_WORKER")
    worker_concurrency: int = option(
        values.create_integer_parser(1), "REMOTE_AGENT_WORKER_CONCURRENCY", default=1024
    )

    # Overrides of the rollout server's options, if set
    #: Host at which agents reach the proxy, with a port if it differs from that of the proxy's URL.
    agent_host: str | None = option(values.parse_text, "LLM_PROXY_IP", sent=True)
    model_name: str | None = option(values.parse_text, "REMOTE_MODEL_NAME", sent=True)
    agent_name: str | None = option(values.parse_text, "REMOTE_AGENT_NAME", sent=True)
    agent_import_path: str | None = option(values.parse_text, "REMOTE_AGENT_IMPORT_PATH", sent=True)
    agent_kwargs: dict[str, Any] | None = option(values.parse_json_object, "REMOTE_AGENT_KWARGS", sent=True)
    environment_overrides: dict[str, Any] | None = option(
        values.parse_json_object, "REMOTE_AGENT_ENVIRONMENT_OVERRIDES", sent=True
    )
    environment_kwargs: dict[str, Any] | None = option(
        values.parse_json_object, "REMOTE_AGENT_ENVIRONMENT_KWARGS", sent=True
    )
    #: Whether the request metadata that an agent sends with a session key is trusted.
    trust_agent: bool | None = option(values.parse_boolean, "LLM_PROXY_TRUST_AGENT", sent=True)
    #: Whether responses continue after their engine request was cut; ``None``: the option of the proxy applies.
    continue_responses: bool | None = option(values.parse_boolean, "LLM_PROXY_CONTINUE_RESPONSES", sent=True)
    #: Whether tokens are masked that were sampled by older weights than the newest of their row.
    mask_stale_tokens: bool | None = option(values.parse_boolean, "LLM_PROXY_MASK_STALE_TOKENS", sent=True)
    #: Maximum number of retries of a failed agent.
    max_retries: int | None = option(values.create_integer_parser(0), "REMOTE_AGENT_MAX_RETRIES", sent=True)
    #: Delay before the first retry; it doubles with each one.
    retry_base_delay: float | None = option(values.parse_seconds, "REMOTE_AGENT_RETRY_BASE_DELAY", sent=True)
    #: What happens after a timeout of the agent: a retry (``retry``), or training of its recorded turns (``keep``).
    on_time_limit: Literal["retry", "keep"] | None = option(
        values.create_choice_parser("retry", "keep"), "LLM_PROXY_ON_TIME_LIMIT", sent=True
    )

    # Results for verl
    #: The source of rewards: the rollout (one without a reward gets the mean of its group), or verl's reward function.
    reward: Literal["agent", "verl"] = option(
        values.create_choice_parser("agent", "verl"), "REMOTE_AGENT_REWARD", default="agent"
    )
    #: Whether all rows of a rollout are returned, or the longest; ``auto``: all if verl accepts several.
    rows: Literal["auto", "all", "longest"] = option(
        values.create_choice_parser("auto", "all", "longest"), "REMOTE_AGENT_ROWS", default="auto"
    )

    @classmethod
    def load(
        cls, options: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None
    ) -> RemoteAgentConfig:
        """Reads the options; ``options`` take precedence over the environment.

        :raises ConfigError: if an option or a variable is invalid; the message names it
        """
        given = values.to_json_value(options or {})
        environment = os.environ if env is None else env
        fields = {spec.name: spec.metadata for spec in cls.__dataclass_fields__.values()}
        _reject_runner_options(given)
        _warn_about_runner_variables(
            tuple(name for _, name in _RUNNER_OPTIONS.values() if environment.get(name))
        )
        unknown = sorted(set(given) - set(fields))
        if unknown:
            raise ConfigError(
                f"remote_agent has no option {unknown[0]!r}; its options are {', '.join(fields)}"
            )
        found: dict[str, Any] = {}
        for name, metadata in fields.items():
            variables = {variable: environment.get(variable) or None for variable in metadata["env"]}
            for source, value in {f"remote_agent.{name}": given.get(name), **variables}.items():
                if value is not None and name not in found:
                    try:
                        found[name] = metadata["read"](value)
                    except ValueError as error:
                        raise ConfigError(f"{source} {error}") from None
        config = cls(**found)
        if not config.proxy_urls:
            raise ConfigError("no proxy: set remote_agent.proxy_urls or PROXY_SERVER_URL")
        return config

    def to_request_fields(self) -> dict[str, Any]:
        """Returns the options that are set and sent, as fields of ``POST /rollouts``."""
        names = [spec.name for spec in self.__dataclass_fields__.values() if spec.metadata["sent"]]
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        # Unlike the option, the field has its unit in its name.
        delay = given.pop("retry_base_delay", None)
        return given if delay is None else {**given, "retry_base_delay_s": delay}


#: Options of the rollout server, each with its flag and its environment variable.
_RUNNER_OPTIONS = {
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
    for name in sorted(given.keys() & _RUNNER_OPTIONS):
        flag, variable = _RUNNER_OPTIONS[name]
        raise ConfigError(
            f"remote_agent.{name} is an option of the rollout server: set {flag} of llm-proxy rollout --listen, "
            f"or {variable} in its environment"
        )


@functools.cache
def _warn_about_runner_variables(variables: tuple[str, ...]) -> None:
    """Logs, once per process, environment variables that apply only to the rollout server.

    They are not an error, because the rollout server may have been started from the same shell.
    """
    if variables:
        logger.warning(
            "%s: ignored by verl's processes; llm-proxy rollout --listen, which runs the agents, reads them",
            ", ".join(variables),
        )
