"""TRL's own trainers with the rows that the proxy recorded, as in docs/trl.md. Skipped where TRL is not installed.

The policy is a model of two layers, and the engine behind the proxy samples from that very model.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.loaders import LOADERS
from helpers.proxy import LAUNCHER, REPOSITORY, start_proxy

pytest.importorskip("trl", reason="TRL is not installed here")
pytestmark = pytest.mark.timeout(240)

GROUP = 4
STEPS = 3
ERROR = 0.1

#: An agent that sends two requests, rewards its second turn, and prints its completions.
AGENT = """
import json, os, urllib.request

def post(url, body):
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))

base = os.environ["OPENAI_BASE_URL"]

def call(messages):
    answer = post(base + "/chat/completions", {"model": "any", "messages": messages, "max_tokens": 10})
    return answer["choices"][0]["message"]

messages = [{"role": "user", "content": os.environ["TASK_PROMPT"]}]
messages += [call(messages), {"role": "user", "content": "Go on."}]
messages += [call(messages)]
proxy, session = base.removesuffix("/v1").rsplit("/", 1)
post(proxy + "/sessions/" + session + "/reward", {"reward": 0, "turns": {"1": 0.5}})
print(messages[1]["content"], messages[3]["content"])
"""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    file = REPOSITORY / "src/embedded/model/tokenizer.json"
    return PreTrainedTokenizerFast(
        tokenizer_file=str(file), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )


def policy(tokenizer: Any) -> Any:
    """Creates a random model that is far from uniform, so that wrong logprobs would be detected."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            initializer_range=0.5,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def documented(command: list[str]) -> dict[str, Any]:
    """Returns the functions of docs/trl.md, with another command to run rollouts."""
    code = re.search(r"^```python\n(.*?)^```$", (REPOSITORY / "docs" / "trl.md").read_text(), re.S | re.M)
    assert code is not None
    scope: dict[str, Any] = {}
    exec(code[1], scope)
    scope["ROLLOUT"] = command
    return scope


@pytest.fixture
def training(tmp_path: Path, tokenizer: Any) -> Iterator[tuple[Any, Any, Any, list[dict[str, Any]]]]:
    """Model, engine, the documented functions with all that they returned, and a proxy between them."""
    from helpers.policy_engine import PolicyEngine, running

    model = policy(tokenizer)
    (tmp_path / "agent.py").write_text(AGENT)
    with (
        running(PolicyEngine(model, tokenizer.eos_token_id)) as engine,
        start_proxy(tmp_path, "--engine-url", engine.url, "--engine-kind", "vllm", mode="local") as proxy,
    ):
        # One agent at a time, because the engine seeds each request by its number.
        command = [str(LAUNCHER), "rollout", "--proxy-url", proxy.url, "--concurrency", "1"]
        command += ["--sandbox", "none", "--command", f"{sys.executable} {tmp_path / 'agent.py'}"]
        command += ["--verifier", 'wc -c < "$AGENT_OUTPUT_FILE" > "$REWARD_FILE"']
        functions = documented(command)
        functions["NAMES"]["facts"] = "extra_fields"
        returned: list[dict[str, Any]] = []
        rollout = functions["rollout_func"]

        def record_rollouts(prompts: list[Any], trainer: Any) -> dict[str, Any]:
            returned.append(rollout(prompts, trainer))
            return dict(returned[-1])

        functions["rollout_func"] = record_rollouts
        yield model, engine, functions, returned


# Options of all its trainers: log each step, and write nothing to disk.
ON_A_CPU: dict[str, Any] = {
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
}


class SharedWeights:
    """Replaces TRL's transfer of weights to vLLM: the engine samples from the trainer's own model."""

    times = 0

    def sync_weights(self) -> None:
        self.times += 1


def turn_reward(completion_ids: Any, facts: Any, **_: Any) -> list[float]:
    """Returns the rewards of turns, each of which ends its row."""
    for ids, ((turn,),) in zip(completion_ids, ([fact["turn_rewards"]] for fact in facts), strict=True):
        assert 0 < turn["start"] < turn["end"] == len(ids)
    return [fact["turn_rewards"][0]["reward"] for fact in facts]


def test_trl_trains_on_rows_of_the_proxy_with_ratios_of_one(
    training: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    model, engine, functions, returned = training

    class WrongLogprobs(TrainerCallback):
        """In the last step the engine reports logprobs that are too high."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            engine.logprob_error = ERROR if state.global_step == STEPS - 1 else 0.0

    config = GRPOConfig(
        output_dir=str(tmp_path / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=GROUP,
        num_generations=GROUP,
        max_completion_length=64,
        learning_rate=0.01,
        **ON_A_CPU,
    )
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    trainer = GRPOTrainer(
        model,
        reward_funcs=[functions["agent_reward"], turn_reward],
        rollout_func=functions["rollout_func"],
        train_dataset=Dataset.from_list([{"prompt": f"Tell me about {what}."} for what in ("sea", "sky")]),
        args=config,
        processing_class=tokenizer,
        callbacks=[WrongLogprobs()],
    )
    # vLLM does not run on a CPU; this enables TRL's code for it.
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, SharedWeights(), -1
    before = [weight.detach().clone() for weight in model.parameters()]
    trainer.train()

    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    ratios = "sampling/importance_sampling_ratio"
    for step in steps[:-1]:
        seen = [step[f"{ratios}/{which}"] for which in ("min", "mean", "max")]
        assert seen == pytest.approx([1, 1, 1], abs=2e-3)
    assert steps[-1]["sampling/sampling_logp_difference/mean"] == pytest.approx(ERROR, abs=1e-3)
    assert steps[-1][f"{ratios}/max"] < 0.9, "the planted error is detected"
    assert trainer.vllm_generation.times == STEPS
    assert any((old != new).any() for old, new in zip(before, model.parameters(), strict=True))
    for step, rollouts in zip(steps, returned, strict=True):
        check_rollouts(rollouts, step)


def check_rollouts(rollouts: dict[str, Any], step: dict[str, Any]) -> None:
    """Checks that each row has two completions with an untrained part between them, and that TRL reports the same."""
    assert [len(values) for values in rollouts.values()] == [GROUP] * 6
    for mask, logprobs in zip(rollouts["env_mask"], rollouts["logprobs"], strict=True):
        assert re.fullmatch("1+0+1+", "".join(map(str, mask)))
        assert [logprob == 0 for logprob in logprobs] == [not bit for bit in mask]
    assert step["completions/mean_length"] == sum(map(sum, rollouts["env_mask"])) / GROUP
    assert step["reward"] == pytest.approx(sum(rollouts["reward_score"]) / GROUP + 0.5)
    assert len(set(rollouts["reward_score"])) > 1, "equal rewards would train nothing"


def test_trl_fine_tunes_on_the_sampled_tokens_only(
    tokenizer: Any, rows_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from trl import SFTConfig, SFTTrainer

    monkeypatch.chdir(rows_folder)
    scope: dict[str, Any] = {}
    for _, code in LOADERS:
        if "pyarrow.parquet" in code or "from datasets" in code:
            exec(code, scope)
    model = policy(tokenizer)
    row = scope["rows"][0]
    logits = model(torch.tensor([row["prompt_ids"] + row["response_ids"]])).logits[0]
    scores = logits.detach().log_softmax(-1)[len(row["prompt_ids"]) - 1 :]
    sampled = [
        (index, token)
        for index, (token, bit) in enumerate(zip(row["response_ids"], row["response_mask"], strict=True))
        if bit
    ]
    config = SFTConfig(
        output_dir=str(tmp_path / "out"),
        max_steps=1,
        **ON_A_CPU,
    )
    trainer = SFTTrainer(model, args=config, train_dataset=scope["dataset"], processing_class=tokenizer)
    trainer.train()
    expected = -sum(float(scores[index, token]) for index, token in sampled) / len(sampled)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-3)


def test_trl_prefers_the_better_sample_on_the_sampled_tokens_alone(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two samples of a task has a tool result in the middle, which DPO's own masks would not exclude."""
    import torch
    from trl import DPOConfig

    page = (REPOSITORY / "docs" / "load-rows.md").read_text()
    code = re.search(r"^```python pairs\n(.*?)^```$", page, re.S | re.M)
    assert code is not None
    scope: dict[str, Any] = {}
    exec(code[1], scope)

    def row(task: int, reward: float | None, response: list[int]) -> dict[str, Any]:
        mask = [1, 1, 0, 0, 0, 1, 1][: len(response)]
        return {
            "task_index": task,
            "prompt_ids": [400, 401, 402],
            "response_ids": response,
            "response_mask": mask,
            "reward_score": reward,
        }

    best, worst = [500, 501, 502, 503, 504, 505, 506], [600, 601, 602, 603, 604, 605]
    rows = [row(0, 0.5, best[::-1]), row(0, 0.25, worst), row(0, 1, best), row(1, 1, best), row(1, 1, worst)]
    rows.append(row(0, None, best[:2]))
    (pair,) = scope["pairs_of"](rows)
    assert (pair["chosen_ids"], pair["rejected_ids"]) == (best, worst)

    config = DPOConfig(
        output_dir=str(tmp_path / "out"),
        max_steps=1,
        per_device_train_batch_size=1,
        remove_unused_columns=False,
        **ON_A_CPU,
    )
    model, reference = policy(tokenizer), policy(tokenizer)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.9)
    trainer = scope["trainer_of"](model, rows, tokenizer, config, ref_model=reference)
    margin = 0.0
    for ids, mask, sign in ((best, pair["chosen_mask"], 1), (worst, pair["rejected_mask"], -1)):
        sequence = torch.tensor([[400, 401, 402, *ids]])
        for one, of_policy in ((model, 1), (reference, -1)):
            with torch.no_grad():
                scores = one(sequence).logits[0, :-1].log_softmax(-1).gather(1, sequence[0, 1:, None])[2:, 0]
            margin += sign * of_policy * float((scores * torch.tensor(mask)).sum())
    trainer.train()
    logged = trainer.state.log_history[0]
    assert abs(margin) > 0.1
    assert logged["loss"] == pytest.approx(
        -float(torch.tensor(config.beta * margin).sigmoid().log()), rel=1e-3
    )
    assert logged["rewards/margins"] == pytest.approx(config.beta * margin, rel=1e-2)
