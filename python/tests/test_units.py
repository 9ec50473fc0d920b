"""Tests without a proxy: options, addresses, names, frames, waits."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.proxy import LAUNCHER
from llm_proxy_verl import config as config_module
from llm_proxy_verl.config import RemoteAgentConfig
from llm_proxy_verl.errors import CallError, ConfigError
from llm_proxy_verl.sampling import build_sampling_params
from llm_proxy_verl.values import to_json_value
from llm_proxy_verl.verl_engine import RolloutLimits
from llm_proxy_verl.worker import frames
from llm_proxy_verl.worker.backoff import get_backoff_limit, keep_connected
from llm_proxy_verl.worker.client import worker_socket_url
from llm_proxy_verl.worker.served_request import ServedRequest

PROXY = {"PROXY_SERVER_URL": "http://proxy:8080"}


def load(options: dict[str, Any] | None = None, **env: str) -> RemoteAgentConfig:
    return RemoteAgentConfig.load(options, {**PROXY, **env})


# Options


def test_every_option_can_be_an_environment_variable() -> None:
    config = load(
        PROXY_SERVER_URL="http://a:1/, ws://b:2",
        LLM_PROXY_IP="10.0.0.1",
        REMOTE_AGENT_NAME="swe",
        REMOTE_AGENT_IMPORT_PATH="m:C",
        REMOTE_MODEL_NAME="qwen",
        REMOTE_AGENT_KWARGS='{"steps": 3}',
        REMOTE_AGENT_MAX_RETRIES="5",
        REMOTE_AGENT_RETRY_BASE_DELAY="1.5",
        REMOTE_AGENT_ENVIRONMENT_OVERRIDES='{"A": "b"}',
        REMOTE_AGENT_ENVIRONMENT_KWARGS='{"c": 1}',
        LLM_PROXY_ROLLOUT_SERVER="http://rollouts:9/",
        LLM_PROXY_TRUST_AGENT="true",
        LLM_PROXY_CONTINUE_RESPONSES="false",
        LLM_PROXY_MASK_STALE_TOKENS="true",
        LLM_PROXY_ON_TIME_LIMIT="keep",
    )
    assert config.proxy_urls == ("http://a:1", "http://b:2")
    assert config.rollout_servers == ("http://rollouts:9",)
    assert config.to_request_fields() == {
        "agent_host": "10.0.0.1",
        "agent_name": "swe",
        "agent_import_path": "m:C",
        "model_name": "qwen",
        "agent_kwargs": {"steps": 3},
        "environment_overrides": {"A": "b"},
        "environment_kwargs": {"c": 1},
        "trust_agent": True,
        "continue_responses": False,
        "mask_stale_tokens": True,
        "max_retries": 5,
        "retry_base_delay_s": 1.5,
        "on_time_limit": "keep",
    }
    assert load().to_request_fields() == {}, "the server's defaults apply to options that are not set"


def test_an_option_overrides_its_variable_and_an_empty_variable_is_ignored() -> None:
    assert load({"model_name": "a"}, REMOTE_MODEL_NAME="b").model_name == "a"
    assert load(REMOTE_MODEL_NAME="").model_name is None


@pytest.mark.parametrize(
    ("options", "env", "named"),
    [
        (None, {"REMOTE_AGENT_KWARGS": "{'a': 1}"}, "REMOTE_AGENT_KWARGS is not JSON"),
        (
            None,
            {"REMOTE_AGENT_ENVIRONMENT_KWARGS": "[]"},
            "REMOTE_AGENT_ENVIRONMENT_KWARGS must be a JSON object",
        ),
        (None, {"REMOTE_AGENT_ENVIRONMENT_OVERRIDES": "{"}, "REMOTE_AGENT_ENVIRONMENT_OVERRIDES is not JSON"),
        (None, {"REMOTE_AGENT_MAX_RETRIES": "-1"}, "REMOTE_AGENT_MAX_RETRIES must be an integer"),
        (
            None,
            {"REMOTE_AGENT_RETRY_BASE_DELAY": "soon"},
            "REMOTE_AGENT_RETRY_BASE_DELAY must be a number of seconds",
        ),
        (None, {"PROXY_SERVER_URL": "proxy:8080"}, "PROXY_SERVER_URL must be an http:// or https:// URL"),
        (
            None,
            {"PROXY_SERVER_URL": "user:key@proxy"},
            "PROXY_SERVER_URL must be an http:// or https:// URL, unlike '***@proxy'",
        ),
        (
            None,
            {"PROXY_SERVER_URL": "http://:key@proxy"},
            "PROXY_SERVER_URL must not contain a user name or a password",
        ),
        (None, {"PROXY_SERVER_URL": ""}, "set remote_agent.proxy_urls or PROXY_SERVER_URL"),
        (None, {"LLM_PROXY_ADMIN_KEY": "@/no/such/file"}, "LLM_PROXY_ADMIN_KEY cannot be read"),
        ({"max_retires": 1}, {}, "remote_agent has no option 'max_retires'"),
        ({"max_retries": True}, {}, "remote_agent.max_retries must be an integer"),
        ({"rows": "some"}, {}, "remote_agent.rows must be one of auto, all, longest"),
        (
            {"runner": "command"},
            {},
            "set --runner of llm-proxy rollout --listen, or REMOTE_AGENT_RUNNER in its environment",
        ),
        (
            {"agentcore_tps": 5},
            {},
            "set --agentcore-tps of llm-proxy rollout --listen, or LLM_PROXY_AGENTCORE_TPS in its environment",
        ),
        ({"worker": "perhaps"}, {}, "remote_agent.worker must be true or false"),
    ],
)
def test_an_invalid_value_is_named(options: dict[str, Any] | None, env: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(options, **env)
    assert named in str(error.value)


def test_each_option_of_the_rollout_server_is_in_its_help() -> None:
    command = [LAUNCHER, "rollout", "--help-all"]
    help_text = subprocess.run(command, capture_output=True, text=True, check=True)
    options = re.split(r"\n  (?=--)", help_text.stdout)
    for flag, variable in config_module._RUNNER_OPTIONS.values():
        (about,) = [text for text in options if text.startswith(f"{flag} ")]
        assert variable in about


def test_a_variable_of_the_agents_runner_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    config_module._warn_about_runner_variables.cache_clear()
    for _ in range(2):
        load(HARBOR_SERVER_URL="http://harbor:8080", LLM_PROXY_AGENTCORE_ARN="arn")
    (record,) = caplog.records
    assert record.message.startswith("HARBOR_SERVER_URL, LLM_PROXY_AGENTCORE_ARN: ignored by verl")


# Sampling


def test_sampling_parameters_are_sent_under_the_engines_names() -> None:
    body = {
        "seed": 1,
        "min_tokens": 2,
        "max_tokens": 5,
        "max_completion_tokens": 7,
        "stop": None,
        "model": "m",
    }
    common = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
    assert build_sampling_params(body, "vllm") == {**common, "seed": 1, "min_tokens": 2, "max_tokens": 7}
    assert build_sampling_params(body, "sglang") == {
        **common,
        "sampling_seed": 1,
        "min_new_tokens": 2,
        "max_tokens": 7,
    }
    assert build_sampling_params({}, "vllm") == common


@pytest.mark.parametrize(
    "field",
    [
        {"response_format": {"type": "json_object"}},
        {"n": 2},
        {"guided_regex": "a+"},
        {"guided_decoding_backend": "xgrammar"},
        {"logit_bias": {"1": 2}},
        {"structured_outputs": {"choice": ["a"]}},
        {"json_schema": {"type": "text"}},
        {"structural_tag": "{}"},
        {"regex": "a+"},
        {"ebnf": "root ::= a"},
        {"stop_regex": "a+"},
        {"allowed_token_ids": [1]},
        {"thinking_token_budget": 0},
        {"repetition_detection": {"max_pattern_size": 4}},
        {"use_beam_search": True},
        {"watermarking": True},
        {"custom_params": {"a": 1}},
        {"custom_logit_processor": "{}"},
        {"logits_processors": ["a.B"]},
        {"vllm_xargs": {"a": 1}},
    ],
)
def test_a_parameter_that_verl_does_not_support_is_rejected_and_named(field: dict[str, Any]) -> None:
    with pytest.raises(CallError) as error:
        build_sampling_params(field, "vllm")
    assert (error.value.code, error.value.status, error.value.param) == (
        "unsupported",
        400,
        next(iter(field)),
    )


def test_a_parameter_without_effect_is_accepted() -> None:
    body: dict[str, Any] = {
        "response_format": {"type": "text"},
        "n": 1,
        "logit_bias": {},
        "guided_json": None,
        "use_beam_search": False,
        "regex": "",
        "metadata": {"a": "b"},
    }
    build_sampling_params(body, "vllm")


def test_the_limit_of_a_completion_is_that_of_verls_server() -> None:
    limits = RolloutLimits("vllm", prompt_length=10, response_length=20, max_model_len=40)
    assert limits.get_completion_limit(5, None) == 20
    assert limits.get_completion_limit(25, None) == 5
    assert limits.get_completion_limit(5, 8) == 8
    assert limits.get_completion_limit(30, 100) == 10


def test_any_value_of_a_dataset_is_converted_to_json() -> None:
    class Array:
        def tolist(self) -> list[float]:
            return [1.0, math.nan]

    row = {"a": Array(), "b": (1, {"c": None}), "d": {True}, "e": Path("/x"), 3: b"y"}
    assert to_json_value(row) == {
        "a": [1.0, None],
        "b": [1, {"c": None}],
        "d": [True],
        "e": "/x",
        "3": "b'y'",
    }


# Frames


def test_token_ids_are_packed_as_in_the_protocol() -> None:
    assert frames.pack_token_ids([1, 256, 2**31 - 1]) == "AQAAAAABAAD///9/"
    ids = list(range(0, 200_000, 7))
    assert frames.unpack_token_ids(frames.pack_token_ids(ids)) == ids
    for broken in ("AQAAAA", "AQAA", "?", "/////w=="):
        with pytest.raises(frames.BadFrameError):
            frames.unpack_token_ids(broken)


@pytest.mark.parametrize("text", ["", "[]", "1", "{}", '{"type": 1}', "{"])
def test_a_text_that_is_not_a_frame_is_rejected(text: str) -> None:
    with pytest.raises(frames.BadFrameError):
        frames.parse_frame(text)


@pytest.mark.parametrize("levels", [99, 100, 101, 199, 200, 1000, 5000])
def test_a_frame_of_any_nesting_is_parsed(levels: int) -> None:
    inner = r'["]}\"", [-0.5, 1e2, true, null, {}], "\ud83d\ude42"]'
    lists, objects = "[" * levels, '{"a":' * levels
    text = f'{{"type": "t", "x": [{lists}{inner}, 1{"]" * levels}, {{}}, {objects}{inner}{"}" * levels}, 2]}}'
    first, second, third, fourth = frames.parse_frame(text)["x"]
    assert (second, fourth) == ({}, 2)
    for _ in range(levels - 1):
        [first] = first
        third = third["a"]
    assert first == [json.loads(inner), 1]
    assert third == {"a": json.loads(inner)}


@pytest.mark.parametrize("inner", ["]", "}", "[", "1 2", "NaN", "-Infinity", '"', "1]", "[NaN,", ""])
def test_a_deep_text_that_is_not_a_frame_is_rejected(inner: str) -> None:
    text = f'{{"type": "t", "x": {"[0," * 2000}{inner}{"]" * 2000}}}'
    with pytest.raises(frames.BadFrameError):
        frames.parse_frame(text)


def test_a_frame_is_parsed_under_a_deep_stack() -> None:
    text = f'{{"type": "t", "x": {"[" * 1000}{"]" * 1000}}}'

    def parse(frames_below: int) -> frames.Frame:
        return frames.parse_frame(text) if frames_below == 0 else parse(frames_below - 1)

    assert parse(sys.getrecursionlimit() - len(inspect.stack()) - 150)["type"] == "t"


def test_an_integer_of_any_length_is_parsed() -> None:
    frame = frames.parse_frame(f'{{"type": "t", "x": [{"9" * 5000}, 9007199254740993]}}')
    assert frame["x"] == [math.inf, 9007199254740993]


def test_a_proxy_of_version_1_is_rejected() -> None:
    with pytest.raises(frames.BadFrameError):
        frames.parse_hello_ack({"type": "worker_hello_ack", "worker_id": "w", "status": "connected"})


def test_a_logprob_that_is_not_finite_is_null_on_the_wire() -> None:
    request = frames.CompletionRequest("r", "s", "chat", {}, [1])
    values = [-math.inf, -0.5, math.nan, None, math.inf]
    frame = frames.dump_chunk(request, frames.Completion([2, 3, 4, 5, 6], values, "stop"), 1)
    assert frames.parse_frame(frame)["deltas"][0]["log_probs"] == [None, -0.5, None, None, None]


def test_a_workers_address_is_made_of_the_proxys() -> None:
    assert worker_socket_url("http://p:1") == "ws://p:1/ws/worker"
    assert worker_socket_url("https://p/llm/") == "wss://p/llm/ws/worker"
    assert worker_socket_url("ws://p/ws/worker") == "ws://p/ws/worker"


# Requests and waits


async def test_a_frame_beyond_the_window_waits_for_an_acknowledgement() -> None:
    request = ServedRequest("r", window_bytes=10)
    request.add(lambda seq: "x" * 8)
    await asyncio.wait_for(request.wait_for_room(), 1)
    request.add(lambda seq: "y" * 8)
    waiting = asyncio.create_task(request.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    request.acknowledge(1)
    await asyncio.wait_for(waiting, 1)


def test_frames_are_stored_until_they_are_acknowledged() -> None:
    request = ServedRequest("r", window_bytes=100)
    assert [request.add(lambda seq: f"f{seq}"), request.end(lambda seq: f"f{seq}")] == ["f1", "f2"]
    assert (request.get_frames_after(0), request.get_frames_after(1)) == (["f1", "f2"], ["f2"])
    request.acknowledge(1)
    assert (request.get_frames_after(0), request.is_delivered) == (["f2"], False)
    request.acknowledge(2)
    request.acknowledge(2)
    assert request.is_delivered


def test_waits_double_from_one_second_to_a_minute() -> None:
    assert [get_backoff_limit(failures) for failures in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert get_backoff_limit(10_000) == 60


async def test_a_stable_connection_resets_the_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    lifetimes = [0.0, 0.0, 12.0, 0.0]
    stopping = asyncio.Event()

    async def connect() -> float:
        if len(lifetimes) == 1:
            stopping.set()
        return lifetimes.pop(0)

    async def wait_for(awaitable: Any, timeout: float) -> None:
        awaitable.close()
        waits.append(timeout)
        if not stopping.is_set():
            raise asyncio.TimeoutError

    monkeypatch.setattr("llm_proxy_verl.worker.backoff.asyncio.wait_for", wait_for)
    await keep_connected(connect, stopping, draw=lambda: 1.0)
    assert waits == [1.0, 2.0, 1.0, 2.0]
