import fc from 'fast-check'
import t from 'tap'
import { CompletionBuilder } from '../../../../../../src/protocol/canonical/completion.ts'
import type { GenerationEvent, GenerationStream } from '../../../../../../src/protocol/canonical/events.ts'
import { ResponseBuffer } from '../../../../../../src/proxy/session/turn/retries/response-buffer.ts'
import { wholeAnswer } from '../../../../../helpers/scripted-backend.ts'

/** As the turn runner makes them: folded, then yielded; the end is yielded after a while. */
async function* folded(events: readonly GenerationEvent[], fold: CompletionBuilder): GenerationStream {
  for (const event of events) {
    fold.add(event)
    if (event.type === 'end') await new Promise(setImmediate)
    yield [event]
  }
}

function foldOf(events: readonly GenerationEvent[]): CompletionBuilder {
  const fold = new CompletionBuilder()
  for (const event of events) fold.add(event)
  return fold
}

async function rest(stream: AsyncIterator<readonly GenerationEvent[]>): Promise<GenerationEvent[]> {
  const events: GenerationEvent[] = []
  for (let next = await stream.next(); !next.done; next = await stream.next()) events.push(...next.value)
  return events
}

function comparable({ content, tokenIds, logprobs, toolCalls, start, end, reasoning }: CompletionBuilder) {
  return { content, tokenIds, logprobs, toolCalls, start, end, reasoning }
}

t.test('whoever joins, and whenever, reads the whole answer once', async (t) => {
  const answer: GenerationEvent[] = [
    ...wholeAnswer().slice(0, -1),
    { type: 'delta', toolCalls: [{ index: 3, id: 'c', function: { name: 'f', arguments: '{"a"' } }] },
    { type: 'delta', reasoning: 'so', toolCalls: [{ index: 3, function: { arguments: ':1}' } }] },
    wholeAnswer().at(-1)!,
  ]
  const whole = comparable(foldOf(answer))
  const step = fc.integer({ min: 0, max: 3 })
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 20 }), async (steps) => {
      const fold = new CompletionBuilder()
      const shared = new ResponseBuffer(folded(answer, fold), fold)
      const readers = [{ stream: shared.read()[Symbol.asyncIterator](), seen: [] as GenerationEvent[] }]
      for (const choice of steps) {
        if (choice === 3) readers.push({ stream: shared.join()[Symbol.asyncIterator](), seen: [] })
        const reader = readers[choice % readers.length]!
        const next = await reader.stream.next()
        if (!next.done) reader.seen.push(...next.value)
      }
      for (const { stream, seen } of readers) {
        const read = [...seen, ...(await rest(stream))]
        t.strictSame(comparable(foldOf(read)), whole)
        t.equal(read.filter(({ type }) => type === 'end').length, 1)
      }
    }),
    { numRuns: 60 },
  )
})

t.test('an answer that fails fails for all who read it', async (t) => {
  const fold = new CompletionBuilder()
  async function* failing(): GenerationStream {
    yield* folded(wholeAnswer().slice(0, 2), fold)
    throw new Error('lost')
  }
  const shared = new ResponseBuffer(failing(), fold)
  const first = shared.read()[Symbol.asyncIterator]()
  await first.next()
  const late = shared.join()[Symbol.asyncIterator]()
  await Promise.all([t.rejects(rest(first), { message: 'lost' }), t.rejects(rest(late), { message: 'lost' })])
  await t.rejects(rest(shared.join()[Symbol.asyncIterator]()), { message: 'lost' })
})

t.test('the answer goes on until the last of its readers has left', async (t) => {
  const fold = new CompletionBuilder()
  let ended = false
  async function* endless(): GenerationStream {
    try {
      for (;;) yield [{ type: 'delta', content: 'x' }]
    } finally {
      ended = true
    }
  }
  const shared = new ResponseBuffer(endless(), fold)
  const first = shared.read()[Symbol.asyncIterator]()
  await first.next()
  const second = shared.join()[Symbol.asyncIterator]()
  await second.next()
  await first.return?.()
  t.notOk(ended)
  t.notOk((await second.next()).done)
  await second.return?.()
  t.ok(ended)
})
