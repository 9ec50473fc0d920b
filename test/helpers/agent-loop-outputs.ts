import type { AgentLoopOutput } from '../../src/protocol/schema/agent-loop-output.ts'
import { withFormerNames } from '../../src/protocol/schema/former-names.ts'
import type { AgentLoopOutputs } from '../../src/rollout/agent-loop-output.ts'

/** Creates the rows of a rollout that branched into `rows` rows. */
export function createAgentLoopOutputs(
  rows: number,
  more: Partial<AgentLoopOutput> = {},
  metrics: Partial<AgentLoopOutput['metrics']> = {},
): AgentLoopOutputs {
  const output: AgentLoopOutput = {
    prompt_ids: [1, 2],
    response_ids: [3, 4, 5],
    response_mask: [1, 0, 1],
    response_logprobs: [-0.5, 0, -0.25],
    reward_score: 1,
    num_turns: 2,
    metrics: withFormerNames({
      agent_seconds: 1,
      tries: 1,
      failed: 0,
      padding: 0,
      num_rows: rows,
      inexact_turns: 0,
      ...metrics,
    }),
    extra_fields: withFormerNames({
      trial_id: 'trial',
      session_id: 'trial',
      agent_status: 'completed' as const,
      error: null,
      row: 0,
      agent_role: 'main',
      reward_components: {},
      turn_rewards: [],
      finish_reason: 'stop',
      finished: true,
      truncated: false,
      prompt_truncated: false,
      weight_version_min: null,
      weight_version_max: null,
    }),
    ...more,
  }
  return Array.from({ length: rows }, () => output) as AgentLoopOutputs
}
