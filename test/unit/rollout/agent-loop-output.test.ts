import t from 'tap'
import { type RolloutOutcome, toOutputs } from '../../../src/rollout/agent-loop-output.ts'
import type { SessionTrajectories, TrajectoryRow } from '../../../src/rollout/proxy-client.ts'

const OUTCOME: RolloutOutcome = {
  trialId: 'trial',
  sessionId: 'trial~2',
  status: 'completed',
  error: null,
  tries: 2,
  agentSeconds: 1.5,
}

const ROW: TrajectoryRow = {
  prompt_ids: [1, 2],
  response_ids: [3, 4, 5],
  response_mask: [1, 0, 1],
  response_logprobs: [-0.5, 0, -0.25],
  num_turns: 2,
  agent_role: 'main',
  finish_reason: 'stop',
  weight_version_min: '7',
  weight_version_max: '8',
  exact: true,
  inexact_reason: null,
  finished: true,
  truncated: false,
  prompt_truncated: true,
  turns: [
    { turn_id: 'a', start: 0, end: 1, reward: null },
    { turn_id: 'b', start: 2, end: 3, reward: 0.5 },
  ],
}

function session(rows: TrajectoryRow[], more: Partial<SessionTrajectories> = {}): SessionTrajectories {
  return {
    reward: 1.25,
    reward_components: { solved: 1, style: 0.25 },
    excluded_turns: {},
    trajectories: rows,
    ...more,
  }
}

t.test("a row of a session is an output under verl's names", async (t) => {
  t.strictSame(toOutputs(session([ROW]), OUTCOME), [
    {
      prompt_ids: [1, 2],
      response_ids: [3, 4, 5],
      response_mask: [1, 0, 1],
      response_logprobs: [-0.5, 0, -0.25],
      reward_score: 1.25,
      num_turns: 2,
      metrics: {
        agent_seconds: 1.5,
        tries: 2,
        failed: 0,
        padding: 0,
        inert: 0,
        num_rows: 1,
        inexact_turns: 0,
      },
      extra_fields: {
        trial_id: 'trial',
        session_id: 'trial~2',
        agent_status: 'completed',
        error: null,
        row: 0,
        agent_role: 'main',
        line: 'main',
        reward_components: { solved: 1, style: 0.25 },
        turn_rewards: [{ start: 2, end: 3, reward: 0.5 }],
        finish_reason: 'stop',
        truncated: false,
        finished: true,
        prompt_truncated: true,
        weight_version_min: '7',
        weight_version_max: '8',
      },
    },
  ])
})

t.test('a session that branched is several outputs, each with the complete reward', async (t) => {
  const outputs = toOutputs(session([ROW, { ...ROW, prompt_ids: [9] }]), OUTCOME)
  t.match(outputs, [
    { prompt_ids: [1, 2], reward_score: 1.25, metrics: { num_rows: 2 }, extra_fields: { row: 0 } },
    { prompt_ids: [9], reward_score: 1.25, metrics: { num_rows: 2 }, extra_fields: { row: 1 } },
  ])
})

t.test('a row without trained tokens is omitted if another row trains its tokens', async (t) => {
  const shared = { ...ROW, response_ids: [3], response_mask: [0], response_logprobs: [0], truncated: true }
  t.match(toOutputs(session([ROW, shared]), OUTCOME), [
    { metrics: { num_rows: 1 }, extra_fields: { row: 0 } },
  ])
  t.equal(toOutputs(session([ROW, shared]), OUTCOME).length, 1)
  t.match(toOutputs(session([shared]), OUTCOME), [
    {
      response_mask: [0],
      metrics: { inert: 1 },
      extra_fields: { error: 'no sampled token remains in its rows' },
    },
  ])
})

t.test('a missing reward is null', async (t) => {
  t.equal(toOutputs(session([ROW], { reward: null, reward_components: {} }), OUTCOME)[0].reward_score, null)
})

t.test('rows without exact ids are omitted and counted', async (t) => {
  const inexact = {
    ...ROW,
    prompt_ids: [],
    response_ids: [],
    response_mask: [],
    response_logprobs: [],
    exact: false,
  }
  t.match(toOutputs(session([inexact, ROW]), OUTCOME), [
    { prompt_ids: [1, 2], metrics: { inexact_turns: 2, num_rows: 1 } },
  ])
  const [output, ...others] = toOutputs(session([{ ...inexact, inexact_reason: 'no ids' }]), OUTCOME)
  t.strictSame(others, [])
  t.match(output, {
    response_mask: [0],
    metrics: { inert: 1, inexact_turns: 2 },
    extra_fields: { error: 'no ids' },
  })
})

t.test('without a turn the output is a padding row with the reason and the given reward', async (t) => {
  t.match(toOutputs(session([]), OUTCOME), [
    {
      prompt_ids: [0],
      response_ids: [0],
      response_mask: [0],
      response_logprobs: [0],
      reward_score: 1.25,
      num_turns: 0,
      metrics: { inert: 1, failed: 0, num_rows: 1 },
      extra_fields: { error: 'the agent sent no request' },
    },
  ])
  t.match(toOutputs(session([], { excluded_turns: { failed: 3, open: 0, aborted: 1 } }), OUTCOME), [
    { extra_fields: { error: 'no turn to train on: 3 failed, 1 aborted' } },
  ])
})

t.test(
  'a padding row without a reward has none, so that it does not count in the mean of its group',
  async (t) => {
    t.equal(toOutputs(session([], { reward: null }), OUTCOME)[0].reward_score, null)
  },
)

t.test('a row has its token data under the names of verl and of the proxy', async (t) => {
  const details = {
    sampling_mask: [[3, 9], null, [5]],
    routed_experts: { dtype: 'uint8', shape: [5, 1, 1], known: [[0, 4]], data: 'AAAAAAA=' },
    weight_versions: null,
  }
  const [output] = toOutputs(session([{ ...ROW, ...details }]), OUTCOME)
  t.match(output, details)
  t.notOk('top_logprobs' in output)
  const [plain] = toOutputs(session([ROW]), OUTCOME)
  t.notOk('routed_experts' in plain)
})
