import t from 'tap'
import { intercept } from '../../../../../../src/base/interceptor.ts'
import { redeliver } from '../../../../../../src/proxy/session/turn/retries/redelivery.ts'
import type { TurnRecord } from '../../../../../../src/proxy/store/port/turn-store.ts'
import { openMemoryStore } from '../../../../../helpers/store-in-process.ts'

/**
 * Opens a store that has one turn.
 * @param position of the retry that is served; undefined if the turn is gone
 */
async function openOneTurnStore(turn: Partial<TurnRecord>, position: number | undefined) {
  return intercept(await openMemoryStore(), {
    getTurn: async () => turn as TurnRecord,
    markRedelivered: async () => position,
  })
}

t.test('a redelivered response has all its recorded data', async (t) => {
  const turn = {
    engine: 'e',
    model: 'm',
    startedAtMs: 1,
    endedAtMs: 2,
    promptTokenIds: Int32Array.of(1),
    completionTokenIds: Int32Array.of(2, 3),
    completionLogprobs: Float64Array.of(-1, -2),
    weightVersionStart: 'v1',
    weightVersionEnd: 'v2',
    completionText: 'a',
    reasoning: 'because',
    toolCalls: '[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]',
    annotations: '{"answer":{"extra":{"citations":[1]}}}',
    finishReason: 'tool_calls',
    stopReason: '"x"',
    usage: '{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}',
  }
  const store = await openOneTurnStore(turn, 1)
  const input = await redeliver(store, { sessionId: 's', turnId: 't' }, 1)
  const { completion } = input!
  t.match(completion, {
    content: 'a',
    reasoning: 'because',
    extra: { citations: [1] },
    toolCalls: [{ id: 'c', function: { name: 'f', arguments: '{}' } }],
    start: { engine: 'e', model: 'm', weightVersion: 'v1' },
    end: { finishReason: 'tool_calls', stopReason: 'x', weightVersion: 'v2', usage: { total_tokens: 3 } },
  })
  t.same([...completion.start!.promptTokenIds!.toArray()], [1])
  t.same(
    [[...completion.tokenIds], [...completion.logprobs]],
    [
      [2, 3],
      [-1, -2],
    ],
  )
})

t.test('a response that is gone, or was removed while it was read, is not redelivered', async (t) => {
  const name = { sessionId: 's', turnId: 't' }
  t.equal(await redeliver(await openMemoryStore(), name, 1), undefined)
  const store = await openOneTurnStore({}, undefined)
  t.equal(await redeliver(store, name, 1), undefined)
})
