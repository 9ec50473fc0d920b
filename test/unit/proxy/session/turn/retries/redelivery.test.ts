import t from 'tap'
import { redeliver } from '../../../../../../src/proxy/session/turn/retries/redelivery.ts'
import type { TurnRecord } from '../../../../../../src/proxy/store/port/turn-store.ts'
import { MemoryTurnStore } from '../../../../../helpers/memory-store.ts'

/** A store that has one turn. */
class OneTurnStore extends MemoryTurnStore {
  readonly #turn: Partial<TurnRecord>

  constructor(turn: Partial<TurnRecord>) {
    super()
    this.#turn = turn
  }

  override async getTurn(): Promise<TurnRecord> {
    return this.#turn as TurnRecord
  }

  override async answerRetry(): Promise<number> {
    return 1
  }
}

t.test('an answer that is given again has all that the record has of it', async (t) => {
  const store = new OneTurnStore({
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
  })
  const given = await redeliver(store, { sessionId: 's', turnId: 't' }, 1)
  const { completion } = given!
  t.match(completion, {
    content: 'a',
    reasoning: 'because',
    extra: { citations: [1] },
    toolCalls: [{ id: 'c', function: { name: 'f', arguments: '{}' } }],
    start: { engine: 'e', model: 'm', weightVersion: 'v1' },
    end: { finishReason: 'tool_calls', stopReason: 'x', weightVersion: 'v2', usage: { total_tokens: 3 } },
  })
  t.same([...completion.start!.promptTokenIds!.whole()], [1])
  t.same(
    [[...completion.tokenIds], [...completion.logprobs]],
    [
      [2, 3],
      [-1, -2],
    ],
  )
})

t.test('an answer that is gone, or went while it was read, is given to nobody', async (t) => {
  const name = { sessionId: 's', turnId: 't' }
  t.equal(await redeliver(new MemoryTurnStore(), name, 1), undefined)
  const store = new OneTurnStore({})
  store.answerRetry = async () => undefined as unknown as number
  t.equal(await redeliver(store, name, 1), undefined)
})
