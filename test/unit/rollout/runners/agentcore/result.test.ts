import t from 'tap'
import { AgentCoreError, toAgentCoreError } from '../../../../../src/rollout/runners/agentcore/errors.ts'
import { parseResult, readResult } from '../../../../../src/rollout/runners/agentcore/result.ts'

for (const [rewardFields, rewards] of [
  [{ reward: 0.5 }, { reward: 0.5 }],
  [{ rewards: [0, 1] }, { reward: 1 }],
  [{ rewards: 1 }, { reward: 1 }],
  [{ rewards: { tests: 1, style: 0.5 } }, { tests: 1, style: 0.5 }],
  [{ rewards: [] }, {}],
  [{ reward: null }, {}],
  [{}, {}],
] as const) {
  t.test(`${JSON.stringify(rewardFields)} has the reward ${JSON.stringify(rewards)}`, async (t) => {
    t.match(readResult({ ...rewardFields, status_code: 200, input_id: 'i' }, 'i'), {
      status: 'completed',
      rewards,
    })
    t.strictSame(readResult(rewardFields, 'i').rewards, rewards)
  })
}

t.test('an invalid reward is an error, and is not trained', async (t) => {
  for (const reward of ['1', true, Number.NaN, { a: 'x' }, ['good'], ['x']]) {
    const result = readResult({ reward }, 'i')
    t.match(result, { status: 'error', error: /^its reward is not a number: / })
    t.strictSame(result.rewards, {})
  }
})

t.test('an agent that failed reports the reason', async (t) => {
  for (const [response, error] of [
    [{ status_code: 500, stop_reason: 'boom', traceback: '…' }, 'boom'],
    [{ status_code: 500, reward: 1 }, 'status_code 500'],
  ] as const) {
    const result = readResult(response, 'i')
    t.match(result, { status: 'failed', error })
    t.strictSame(result.rewards, {})
  }
})

t.test(
  "another sample's result, text that is not JSON, and JSON that is not an object are errors",
  async (t) => {
    const another = readResult({ input_id: 'j', reward: 1 }, 'i')
    t.match(another, { status: 'error', error: /another sample: j$/ })
    t.strictSame(another.rewards, {})
    t.match(parseResult('<html>', 'i'), { status: 'error', error: 'its result is not JSON: <html>' })
    t.match(parseResult('[1]', 'i'), { status: 'error', error: 'its result is not a JSON object' })
  },
)

t.test("other fields of an agent's result are forwarded, without the row that it received", async (t) => {
  t.strictSame(readResult({ reward: 1, metrics: { steps: 3 }, payload: { answer: 42 } }, 'i').details, {
    reward: 1,
    metrics: { steps: 3 },
  })
})

const thrown = (name: string, more: object = {}) => Object.assign(new Error('why'), { name, ...more })

t.test('each error of AgentCore is one outcome', async (t) => {
  const client = { $fault: 'client', $metadata: { httpStatusCode: 400 } }
  for (const [error, kind, status, isBeforeStart] of [
    [thrown('ThrottlingException', client), 'throttled', 'error', true],
    [
      thrown('Anything', { $fault: 'client', $metadata: { httpStatusCode: 429 } }),
      'throttled',
      'error',
      true,
    ],
    [thrown('ServiceQuotaExceededException', client), 'quota', 'error', true],
    [thrown('RetryableConflictException', client), 'conflict', 'error', true],
    [thrown('RuntimeClientError', client), 'agent', 'failed', false],
    [thrown('ResourceNotFoundException', client), 'gone', 'error', true],
    [thrown('ValidationException', client), 'refused', 'error', true],
    [thrown('AccessDeniedException', client), 'refused', 'error', true],
    [thrown('InternalServerException', { $fault: 'server' }), 'lost', 'error', false],
    [thrown('Error', { code: 'ECONNRESET' }), 'lost', 'error', false],
  ] as const) {
    const converted = toAgentCoreError(error)
    t.match(converted, { kind, isBeforeStart, result: { status, error: /: \w+: why$/ } })
    t.strictSame(converted.result.rewards, {})
    t.equal(toAgentCoreError(converted), converted)
  }
  t.equal(
    new AgentCoreError('agent', 'x'.repeat(1_000)).message,
    `the AgentCore container failed: ${'x'.repeat(200)}…`,
  )
})
