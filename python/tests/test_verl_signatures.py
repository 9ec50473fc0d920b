"""The parts of verl that this package uses have the expected signatures, in every supported version of verl."""

from __future__ import annotations

import pytest

from verl_wheels import (
    AGENT_LOOP,
    FAKE_VERSION,
    LLM_SERVER,
    REPLICA,
    VERSIONS,
    Source,
    fake_text,
    wheel_text,
)

#: The fields of verl's output that the agent loop sets.
OUTPUT_FIELDS = {
    "prompt_ids",
    "response_ids",
    "response_mask",
    "response_logprobs",
    "multi_modal_data",
    "reward_score",
    "num_turns",
    "metrics",
    "extra_fields",
}


@pytest.mark.parametrize(
    ("path", "function"),
    [
        (AGENT_LOOP, "AgentLoopBase.__init__"),
        (AGENT_LOOP, "AgentLoopBase.run"),
        (AGENT_LOOP, "DictConfigWrap.__init__"),
        (AGENT_LOOP, "register"),
        (LLM_SERVER, "LLMServerClient.__init__"),
        (LLM_SERVER, "LLMServerClient.generate"),
    ],
)
def test_a_function_of_the_fake_has_the_parameters_of_verls(path: str, function: str) -> None:
    theirs = Source(wheel_text(FAKE_VERSION, path)).parameters(function)
    assert Source(fake_text(path)).parameters(function) == theirs


@pytest.mark.parametrize(
    ("path", "model"),
    [(AGENT_LOOP, "AgentLoopOutput"), (AGENT_LOOP, "AgentLoopMetrics"), (REPLICA, "TokenOutput")],
)
def test_a_model_of_the_fake_has_the_fields_of_verls(path: str, model: str) -> None:
    assert Source(fake_text(path)).fields(model) == Source(wheel_text(FAKE_VERSION, path)).fields(model)


@pytest.mark.parametrize("version", VERSIONS)
def test_verl_has_the_interfaces_that_the_agent_loop_uses(version: str) -> None:
    agent_loop = Source(wheel_text(version, AGENT_LOOP))
    assert agent_loop.parameters("AgentLoopBase.run") == ["self", "sampling_params", "**kwargs"]
    assert agent_loop.parameters("register") == ["agent_name"]
    assert agent_loop.parameters("AgentLoopBase.__init__")[:5] == [
        "self",
        "trainer_config",
        "server_manager",
        "tokenizer",
        "processor",
    ]
    assert agent_loop.field_names("AgentLoopOutput") >= OUTPUT_FIELDS
    assert agent_loop.field_names("AgentLoopMetrics") >= {"generate_sequences", "tool_calls"}


@pytest.mark.parametrize("version", VERSIONS)
def test_verls_client_is_called_as_the_worker_calls_it(version: str) -> None:
    agent_loop = Source(wheel_text(version, AGENT_LOOP))
    old = agent_loop.has_class("AsyncLLMServerManager")
    client = agent_loop if old else Source(wheel_text(version, LLM_SERVER))
    parameters = client.parameters(f"{'AsyncLLMServerManager' if old else 'LLMServerClient'}.generate")
    assert parameters[:5] == ["self", "request_id", "*", "prompt_ids", "sampling_params"]
    assert all("=" in name or name.startswith("**") for name in parameters[5:])
    output_fields = Source(wheel_text(version, REPLICA)).field_names("TokenOutput")
    assert output_fields >= {"token_ids", "log_probs", "stop_reason"}


@pytest.mark.parametrize("version", VERSIONS)
def test_verls_vllm_server_takes_the_agents_budget(version: str) -> None:
    """0.6 did not take `max_tokens`."""
    text = wheel_text(version, "verl/workers/rollout/vllm_rollout/vllm_async_server.py")
    assert 'if "max_tokens" in sampling_params:' in text
