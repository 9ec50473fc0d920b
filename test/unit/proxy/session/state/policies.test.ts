import t from 'tap'
import type { DeclaredAgentRole } from '../../../../../src/proxy/session/roles/agent-role.ts'
import {
  findPolicy,
  type Policies,
  readPolicies,
  readRecordedPolicy,
} from '../../../../../src/proxy/session/state/policies.ts'
import { TrajectoryBuilder } from '../../../../../src/proxy/session/trajectories/trajectories.ts'
import { addMessageTexts } from '../../../../helpers/messages.ts'
import { DEFAULT_TURN } from '../../../../helpers/sessions-api.ts'

t.test('a single name is the policy of every agent role', async (t) => {
  t.same(readPolicies('actor'), { '*': 'actor' })
  for (const agentRole of [undefined, 'main', 'side', 'compaction', 'subagent', 'subagent:x'] as const)
    t.equal(findPolicy(readPolicies('actor'), agentRole), 'actor', agentRole ?? 'undeclared')
  t.equal(findPolicy(readPolicies(undefined)), undefined)
})

t.test('an agent role has its own policy, or that of its parent role', async (t) => {
  const policies: Policies = { main: 'actor', subagent: 'helper', 'subagent:critic': 'critic', '*': 'base' }
  const expected: [DeclaredAgentRole | undefined, string][] = [
    [undefined, 'actor'],
    ['main', 'actor'],
    ['compaction', 'actor'],
    ['subagent:critic', 'critic'],
    ['subagent:1', 'helper'],
    ['subagent', 'helper'],
    ['side', 'base'],
  ]
  for (const [agentRole, name] of expected)
    t.equal(findPolicy(policies, agentRole), name, agentRole ?? 'undeclared')
  t.equal(findPolicy({ 'subagent:critic': 'critic' }, 'main'), undefined, 'no policy has its name')
})

t.test('a policy of an unknown role, or without a name, is rejected', async (t) => {
  for (const policy of [{ critic: 'x' }, { 'subagent:': 'x' }, { main: '' }, { main: 'x'.repeat(600) }]) {
    t.throws(() => readPolicies(policy), { code: 'invalid_request', param: 'policy' })
  }
  const many = Object.fromEntries(Array.from({ length: 65 }, (_, i) => [`subagent:${i}`, 'x']))
  t.throws(() => readPolicies(many), { code: 'invalid_request', param: 'policy' })
})

/** A conversation: the actor starts, a critic reviews it, and the actor continues. */
function createConversation(): TrajectoryBuilder {
  const builder = new TrajectoryBuilder()
  const add = (index: number, prompt: number[], policy: string | null, agentRole: string) =>
    builder.add({
      ...DEFAULT_TURN,
      lastMessage: addMessageTexts(DEFAULT_TURN.requestMessages),
      index,
      turnId: `t${index}`,
      promptTokenIds: Int32Array.from(prompt),
      completionTokenIds: Int32Array.of(10 + index),
      completionLogprobs: Float64Array.of(-index),
      annotations: JSON.stringify({ line: { told: agentRole, rule: 'header' }, ...(policy && { policy }) }),
    })
  add(0, [1], 'actor', 'main')
  add(1, [2], 'critic', 'subagent:critic')
  add(2, [1, 10, 3], 'actor', 'main')
  // Another turn continues the actor's first one with another policy.
  add(3, [1, 10, 4], 'critic', 'main')
  return builder
}

const describeRows = (builder: TrajectoryBuilder, options = {}, reward = {}) =>
  [...builder.assembleRows(options, { reward: 1, components: {}, ...reward })].map((row) => ({
    policy: row.policy,
    mask: [...row.response_mask],
    reward: row.reward,
    turns: row.turns.map(({ index, policy, trained }) => [index, policy, trained]),
  }))

t.test('rows have the policy of their turns, or none if the turns differ', async (t) => {
  t.same(
    describeRows(createConversation()).map(({ policy }) => policy),
    ['critic', 'actor', null],
  )
  t.equal(readRecordedPolicy({ annotations: '{}' }), null)
  t.equal(readRecordedPolicy({ annotations: '{"policy":7}' }), null)
})

t.test('rows of one policy train only its turns, each once', async (t) => {
  t.same(describeRows(createConversation(), { policy: 'actor' }), [
    {
      policy: 'actor',
      mask: [1, 0, 1],
      reward: 1,
      turns: [
        [0, 'actor', true],
        [2, 'actor', true],
      ],
    },
  ])
  t.same(
    describeRows(createConversation(), { policy: 'critic' }).map(({ mask }) => mask),
    [[1], [0, 0, 1]],
  )
  t.same(describeRows(createConversation(), { policy: 'unknown' }), [])
  t.same(
    describeRows(createConversation(), { policy: 'critic', perTurn: true }).map(({ turns }) => turns),
    [[[1, 'critic', true]], [[3, 'critic', true]]],
  )
})

t.test("the reward of an agent role has precedence over the session's", async (t) => {
  t.same(
    describeRows(createConversation(), {}, { lines: { 'subagent:critic': 0.25 } }).map(
      ({ reward }) => reward,
    ),
    [0.25, 1, 1],
  )
})
