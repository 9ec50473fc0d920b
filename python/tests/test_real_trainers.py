"""The functions of docs/trainers.md, with the released types and checks of the trainers.

The proxy runs an agent that sends two requests. Skipped without PyTorch.
"""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest

from helpers.proxy import REPOSITORY, start_proxy
from helpers.released import load_part
from llm_proxy import Client
from test_real_trl import AGENT

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
pytestmark = pytest.mark.timeout(120)

RECIPES = dict(
    re.findall(
        r"^```python trainer (\S+)\n(.*?)^```$", (REPOSITORY / "docs/trainers.md").read_text(), re.S | re.M
    )
)
SKYRL, AREAL, GYM = "skyrl==0.4.0", "areal==1.0.4", "nemo-gym==0.4.0"
GYM_CLIENT = ("RATE_LIMIT_ERROR_CODES", "RETRY_ERROR_CODES", "NeMoGymAsyncOpenAI")
CHECKS = ("validate_generator_output", "_validate_per_token_side_channels")
#: An agent of this task ends before its first request.
FAILS = "import os, sys\nif 'broken' in os.environ['TASK_PROMPT']: sys.exit(1)"
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.0}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Runs agents itself, each once; the reward is the length of what an agent printed."""
    folder = tmp_path_factory.mktemp("trainers")
    (folder / "agent.py").write_text(f"{FAILS}\n{AGENT}")
    flags = ["--runner", "command", "--sandbox", "none", "--command", f"{sys.executable} {folder}/agent.py"]
    flags += ["--max-retries", "0", "--verifier", 'wc -c < "$AGENT_OUTPUT_FILE" > "$REWARD_FILE"']
    with start_proxy(folder, *flags, mode="local") as started:
        yield Client(started.url)


def recipe(
    name: str, proxy: Client, monkeypatch: pytest.MonkeyPatch, modules: dict[str, ModuleType]
) -> dict[str, Any]:
    monkeypatch.setenv("PROXY_SERVER_URL", proxy.url)
    for path, module in modules.items():
        monkeypatch.setitem(sys.modules, path, module)
    scope: dict[str, Any] = {}
    exec(RECIPES[name], scope)
    return scope


def check_sampled(
    proxy: Client, ids: list[int], mask: list[int], logprobs: list[float], reward: float
) -> str | None:
    """Returns why the row ended; asserts that one session recorded it, sampled as the trainer requested."""
    assert len(ids) == len(mask) == len(logprobs)
    for session in proxy.sessions():
        rows = proxy.session(session["session_id"]).rows(select="longest", details=["sampling"])
        if not rows or [*rows[0].prompt_ids, *rows[0].response_ids] != ids:
            continue
        (row,) = rows
        prompt = len(row.prompt_ids)
        assert mask == [0] * prompt + row.response_mask
        assert logprobs == pytest.approx([0.0] * prompt + row.response_logprobs, abs=1e-6)
        assert reward == row.reward > 0
        assert len(row.turns) == 2
        assert sum(mask) > 2
        return row.finish_reason
    raise AssertionError("no session recorded these tokens")


async def test_slime_gets_a_sample_for_each_row(proxy: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = str(REPOSITORY / "python/tests/fakes/slime")
    package = ModuleType("slime")
    package.__path__ = [fake]
    scope = recipe("slime", proxy, monkeypatch, {"slime": package})
    kind = scope["Sample"]
    sample = kind(group_index=3, index=7, prompt="What is a lake?", metadata={"instance_id": "lake"})
    arguments = Namespace(rollout_max_response_len=512)
    (filled,) = await scope["generate"](arguments, sample, {**SAMPLING, "max_new_tokens": 512})
    prompt = len(filled.tokens) - filled.response_length
    end = check_sampled(
        proxy,
        filled.tokens,
        [0] * prompt + filled.loss_mask,
        [0.0] * prompt + filled.rollout_log_probs,
        filled.reward,
    )
    assert (filled.group_index, filled.index, filled.rollout_id) == (3, 7, 7)
    assert filled.status is (kind.Status.TRUNCATED if end == "length" else kind.Status.COMPLETED)
    assert sample.tokens == [], "the sample that slime passed is unchanged"


async def test_slime_leaves_a_failed_sample_out_of_the_mean_of_its_group(
    proxy: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ModuleType("slime")
    package.__path__ = [str(REPOSITORY / "python/tests/fakes/slime")]
    scope = recipe("slime", proxy, monkeypatch, {"slime": package})
    kind = scope["Sample"]
    broken = kind(index=1, prompt="broken", metadata={})
    (failed,) = await scope["generate"](Namespace(rollout_max_response_len=64), broken, SAMPLING)
    assert (failed.status, failed.remove_sample, failed.loss_mask) == (kind.Status.ABORTED, True, [0])
    judged = [kind(reward=reward, status=kind.Status.COMPLETED) for reward in (1.0, 0.0, 1.0)]
    scope["keep_means"](None, [[[judged[0]], [failed]], [judged[1:], [judged[0]]]])
    assert [failed.reward, *(sample.reward for sample in judged)] == [1.0, 1.0, 0.0, 1.0]


async def test_skyrl_takes_the_generators_output(proxy: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["TrainingPhase", "TrajectoryID", "BatchMetadata", "GeneratorInput", "GeneratorOutput"]
    base = load_part(SKYRL, "skyrl/train/generators/base.py", *names, "GeneratorInterface")
    check = load_part(SKYRL, "skyrl/train/utils/trainer_utils.py", *CHECKS)
    scope = recipe("skyrl", proxy, monkeypatch, {"skyrl.train.generators.base": base})
    names = ("lake", "river", "sea", "broken")
    prompts = [[{"role": "user", "content": f"What is a {name}?"}] for name in names]
    request = base.GeneratorInput(
        prompts=prompts,
        env_classes=["agent"] * 4,
        env_extras=[{"instance_id": str(number)} for number in range(4)],
        sampling_params={**SAMPLING, "max_tokens": 64, "logprobs": 1, "stop": None},
        trajectory_ids=[base.TrajectoryID("task", number) for number in range(4)],
        batch_metadata=None,
    )
    generator = scope["AgentGenerator"]()
    assert isinstance(generator, base.GeneratorInterface)
    output = await generator.generate(request)
    assert set(output) <= set(base.GeneratorOutput.__annotations__)
    check.validate_generator_output(4, output)
    *rewards, filled_in = output["rewards"]
    assert filled_in == pytest.approx(sum(rewards) / 3)
    assert output["loss_masks"][3] == [0]
    for index in range(3):
        prompt_ids = output["prompt_token_ids"][index]
        zeros = [0] * len(prompt_ids)
        end = check_sampled(
            proxy,
            prompt_ids + output["response_ids"][index],
            zeros + output["loss_masks"][index],
            [float(zero) for zero in zeros] + output["rollout_logprobs"][index],
            output["rewards"][index],
        )
        assert output["stop_reasons"][index] == ("length" if end == "length" else "stop")


async def test_areal_takes_the_workflows_trajectory(proxy: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    api = load_part(AREAL, "areal/api/workflow_api.py", "RolloutWorkflow")
    check = load_part(AREAL, "areal/infra/workflow_executor.py", "check_trajectory_format")
    check.InteractionWithTokenLogpReward = type("Interaction", (), {})
    scope = recipe("areal", proxy, monkeypatch, {"areal": ModuleType("areal"), "areal.api": api})
    workflow = scope["AgentWorkflow"]()
    assert isinstance(workflow, api.RolloutWorkflow)
    data = {"messages": [{"role": "user", "content": "What is a lake?"}], "answer": "water"}
    trajectory = await workflow.arun_episode(Namespace(get_version=lambda: 4), data)

    class Warns:
        def warning(self, text: str) -> None:
            raise AssertionError(text)

        def info(self, text: str) -> None: ...

    assert check.check_trajectory_format(trajectory, 1, set(trajectory), Warns())
    rows = {name: value[0].tolist() for name, value in trajectory.items()}
    assert all(rows["attention_mask"])
    assert set(zip(rows["loss_mask"], rows["versions"], strict=True)) == {(0, -1), (1, 4)}
    check_sampled(proxy, rows["input_ids"], rows["loss_mask"], rows["logprobs"], rows["rewards"])
    broken = {"messages": [{"role": "user", "content": "broken"}]}
    assert await workflow.arun_episode(Namespace(get_version=lambda: 4), broken) is None


async def test_nemo_gym_sends_exact_requests_of_a_session(tmp_path: Path) -> None:
    """Runs the code of its model server, from a Chat Completions body to the message that its trainer receives."""
    client = load_part(GYM, "nemo_gym/openai_utils.py", *GYM_CLIENT)
    client.MAX_NUM_TRIES, client.raise_for_status = 3, _raise_for_status
    client._GLOBAL_AIOHTTP_CLIENT_REQUEST_DEBUG, client.get_response_json = False, _json
    app = load_part(GYM, "responses_api_models/vllm_model/app.py", "VLLMModelConfig", "VLLMModel")
    app.NeMoGymChatCompletion = Namespace(model_validate=lambda body: body)
    app.Body = lambda: None
    async with aiohttp.ClientSession() as http:

        async def request(method: str, url: str, _internal: bool, **kwargs: Any) -> Any:
            return await http.request(method, url, **kwargs)

        client.request = request
        with start_proxy(tmp_path, mode="local") as started:
            settings = Namespace(
                name="policy",
                sequential_reasoning_allowed=True,
                uses_reasoning_parser=False,
                return_token_id_information=True,
            )
            connection = client.NeMoGymAsyncOpenAI(base_url=f"{started.url}/gym/v1", api_key="none")
            gym = type("Gym", (), {"_resolve_client": lambda *_: connection, "config": settings})()
            gym._preprocess_chat_completion_create_params = lambda _, body: {
                **body,
                "logprobs": True,
                "top_logprobs": 0,
                "return_tokens_as_token_ids": True,
            }
            messages: list[dict[str, Any]] = [{"role": "user", "content": "What is a lake?"}]
            # These seeds draw no reasoning, which NeMo Gym rejects from a server without a reasoning parser.
            for seed in range(3):
                body = {"model": "any", "messages": messages, "max_tokens": 12, "seed": seed}
                request = Namespace(model_dump=lambda body=body, **_: dict(body))
                response = await app.VLLMModel.chat_completions(gym, None, request)
                message = response["choices"][0]["message"]
                turn = (await started.turns(http, "gym"))[-1]
                assert message.pop("prompt_token_ids") == turn["prompt_token_ids"]
                assert [int(token) for token in message.pop("generation_token_ids")] == turn[
                    "completion_token_ids"
                ]
                assert message.pop("generation_log_probs") == turn["completion_logprobs"]
                messages = [*messages, message, {"role": "user", "content": "Go on."}]
            (row,) = Client(started.url).session("gym").rows()
            assert len(row.turns) == 3


async def _raise_for_status(response: Any) -> None:
    response.raise_for_status()


async def _json(response: Any) -> Any:
    return await response.json()
