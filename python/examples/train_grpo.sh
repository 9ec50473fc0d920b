#!/usr/bin/env bash
# GRPO with agents that run behind llm-proxy, on one node with 8 GPUs. docs/verl.md explains every step; the names of
# verl's options are checked against verl 0.7 to 0.9.
#
#   MODEL=Qwen/Qwen3-8B DATA=/data/tasks PROXY_SERVER_URL=http://proxy:8080 examples/train_grpo.sh
#
# Further arguments are overrides of verl's configuration.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

: "${MODEL:?the model to train: a path or a name of the Hugging Face hub}"
: "${DATA:?a directory with train.parquet and val.parquet}"
: "${PROXY_SERVER_URL:?base URL of the proxy, which runs in relay mode with --tokenizer \$MODEL}"

# One conversation may have as many tokens as these together, the proxy's --context-length.
prompt_length=${PROMPT_LENGTH:-8192}
response_length=${RESPONSE_LENGTH:-24576}
context_length=$((prompt_length + response_length))

# What agent loops read from their environment, for workers on other nodes too. verl prints its configuration: give keys
# as @/path/of/a/file.
env_vars=()
for name in PROXY_SERVER_URL LLM_PROXY_IP LLM_PROXY_ADMIN_KEY LLM_PROXY_WORKER_KEY LLM_PROXY_ROLLOUT_SERVER \
  REMOTE_AGENT_NAME REMOTE_AGENT_IMPORT_PATH REMOTE_MODEL_NAME; do
  if [ -n "${!name:-}" ]; then env_vars+=("+ray_kwargs.ray_init.runtime_env.env_vars.$name='${!name}'"); fi
done

python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  algorithm.use_kl_in_reward=False \
  data.train_files="$DATA/train.parquet" \
  data.val_files="$DATA/val.parquet" \
  data.train_batch_size=32 \
  data.max_prompt_length="$prompt_length" \
  data.max_response_length="$response_length" \
  data.return_raw_chat=True \
  data.filter_overlong_prompts=False \
  actor_rollout_ref.model.path="$MODEL" \
  actor_rollout_ref.actor.optim.lr=1e-6 \
  actor_rollout_ref.actor.ppo_mini_batch_size=32 \
  actor_rollout_ref.actor.use_dynamic_bsz=True \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu="$context_length" \
  actor_rollout_ref.actor.use_kl_loss=False \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.mode=async \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.temperature=1.0 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.7 \
  actor_rollout_ref.rollout.max_model_len="$context_length" \
  actor_rollout_ref.rollout.calculate_log_probs=True \
  actor_rollout_ref.rollout.agent.num_workers=8 \
  actor_rollout_ref.rollout.agent.default_agent_loop=remote_agent \
  actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/remote_agent.yaml" \
  trainer.n_gpus_per_node=8 \
  trainer.nnodes=1 \
  trainer.val_before_train=False \
  trainer.save_freq=20 \
  trainer.test_freq=10 \
  trainer.total_epochs=1 \
  trainer.project_name=llm-proxy \
  trainer.experiment_name=grpo \
  "${env_vars[@]}" "$@"
