import t from 'tap'
import { CompletionBuilder } from '../../../../../../src/protocol/canonical/completion.ts'
import { LiveOutputTail } from '../../../../../../src/proxy/http/trainer/sessions/live-output-tail.ts'
import type { InFlightTurn } from '../../../../../../src/proxy/session/state/live-turn.ts'

function createTail() {
  const completion = new CompletionBuilder()
  const turn = { open: { index: 0, startedAtMs: 0 }, completion } as unknown as InFlightTurn
  const time = { ms: 0 }
  const tail = new LiveOutputTail(() => time.ms)
  const addArguments = (text: string) =>
    completion.add({ type: 'delta', toolCalls: [{ index: 0, function: { arguments: text } }] })
  return { completion, time, tail, addArguments, poll: () => tail.takeAdditions([turn]) }
}

t.test('text is sent at each poll in which it has changed', async (t) => {
  const { completion, tail, poll } = createTail()
  t.match(poll(), [{ type: 'turn', index: 0, started_at: 0, text: '' }])
  t.strictSame(poll(), [])
  completion.add({ type: 'delta', content: 'ab', reasoning: 'r' })
  t.match(poll(), [{ type: 'delta', text: 'ab', reasoning: 'r' }])
  completion.add({ type: 'delta', content: 'c' })
  t.match(poll(), [{ type: 'delta', text: 'c', reasoning: '' }])
  t.strictSame(tail.takeAdditions([]), [{ type: 'turn_closed', index: 0 }])
})

t.test('changed tool calls are sent once a second, and when the response ends', async (t) => {
  const { completion, time, addArguments, poll } = createTail()
  addArguments('{"a":')
  t.match(poll(), [{ type: 'turn', tool_calls: [{ function: { arguments: '{"a":' } }] }])
  addArguments('1')
  time.ms = 900
  t.strictSame(poll(), [])
  completion.add({ type: 'delta', content: 'x' })
  t.notOk('tool_calls' in poll()[0]!, 'not with a text either')
  time.ms = 1_000
  t.match(poll(), [{ type: 'delta', text: '', tool_calls: [{ function: { arguments: '{"a":1' } }] }])
  time.ms = 5_000
  t.strictSame(poll(), [], 'no change')
  addArguments(',')
  t.equal(poll().length, 1)
  addArguments('}')
  completion.add({ type: 'end', finishReason: 'tool_calls' } as Parameters<typeof completion.add>[0])
  t.equal(poll().length, 1)
  t.strictSame(poll(), [])
})

t.test('unchanged tool calls are not serialized', async (t) => {
  const { addArguments, poll, time } = createTail()
  addArguments('{}')
  poll()
  const { stringify } = JSON
  t.teardown(() => Object.assign(JSON, { stringify }))
  let serializations = 0
  JSON.stringify = ((value: unknown) => {
    serializations += 1
    return stringify(value)
  }) as typeof stringify
  for (let polls = 0; polls < 10; polls += 1) {
    time.ms += 100
    poll()
  }
  JSON.stringify = stringify
  t.equal(serializations, 0)
})
