import fc from 'fast-check'
import t from 'tap'
import { CompletionBuilder } from '../../../../../src/protocol/canonical/completion.ts'
import type { GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../../../src/protocol/canonical/request.ts'
import { ToolCallIds } from '../../../../../src/proxy/session/matching/tool-call-ids.ts'
import type { TurnAllocation } from '../../../../../src/proxy/session/state/turn-allocation.ts'
import { RunningTurn } from '../../../../../src/proxy/session/turn/running-turn.ts'
import type { OpenTurn } from '../../../../../src/proxy/store/port/turn-store.ts'
import { readResponse } from '../../../../helpers/event-stream.ts'
import { completeResponse } from '../../../../helpers/scripted-backend.ts'
import { limitRuns } from '../../../../helpers/tier.ts'

const never = new AbortController().signal

/**
 * Starts a turn whose engine events a test releases one by one. The end is written after a delay, as after a
 * commit.
 */
function startTurn(events: readonly GenerationEvent[], failure?: Error) {
  const gates = [...events, null].map(() => Promise.withResolvers<void>())
  const run = async (turn: RunningTurn) => {
    for (const [index, event] of events.entries()) {
      await gates[index]!.promise
      turn.completion.add(event)
      if (event.type === 'end') {
        await new Promise(setImmediate)
        turn.endedAtMs = 1
      }
      await turn.write([event])
    }
    if (failure) throw failure
  }
  const allocation = {
    memory: { callIds: new ToolCallIds() },
    signal: never,
    over: new Promise(() => {}),
    cancel() {},
  } as unknown as TurnAllocation
  const open = { turnId: 't', startedAtMs: 0 } as OpenTurn
  const generation = {} as GenerationRequest
  const retryInfo = { retryCount: 0 }
  const prepared = { allocation, open, retryInfo, log: undefined, annotations: {}, generation }
  const hooks = { run, getGraceMs: () => 0, markUndelivered: async () => {} }
  const turn = new RunningTurn(prepared, Promise.resolve(), hooks)
  return { turn, gates }
}

function foldEvents(events: readonly GenerationEvent[]) {
  const builder = new CompletionBuilder()
  builder.write(events)
  const { content, tokenIds, logprobs, toolCalls, start, end, reasoning } = builder
  return { content, tokenIds, logprobs, toolCalls, start, end, reasoning }
}

/** A connection that accepts nothing while it is blocked. */
class Connection {
  readonly events: GenerationEvent[] = []
  #blocked: PromiseWithResolvers<void> | undefined

  block(): void {
    this.#blocked ??= Promise.withResolvers()
  }

  accept(): void {
    this.#blocked?.resolve()
    this.#blocked = undefined
  }

  write(batch: readonly GenerationEvent[]): Promise<void> | undefined {
    this.events.push(...batch)
    return this.#blocked?.promise
  }
}

t.test('a connection that joins at any time receives the complete response once', async (t) => {
  const response: GenerationEvent[] = [
    ...completeResponse().slice(0, -1),
    { type: 'delta', toolCalls: [{ index: 3, id: 'c', function: { name: 'f', arguments: '{"a"' } }] },
    { type: 'delta', reasoning: 'so', toolCalls: [{ index: 3, function: { arguments: ':1}' } }] },
    completeResponse().at(-1)!,
  ]
  const full = foldEvents(response)
  const step = fc.tuple(fc.constantFrom('sample', 'join', 'block', 'accept', 'tick'), fc.nat(5))
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 30 }), async (steps) => {
      const { turn, gates } = startTurn(response)
      const first = new Connection()
      const connections = [first]
      const deliveries = [turn.createFirstHandle(never).deliver(first)]
      let sampled = 0
      for (const [action, number] of steps) {
        const connection = connections[number % connections.length]!
        if (action === 'sample') gates[sampled++]?.resolve()
        else if (action === 'join') {
          const joined = new Connection()
          connections.push(joined)
          deliveries.push(turn.join(1, never).deliver(joined))
        } else if (action === 'block') connection.block()
        else if (action === 'accept') connection.accept()
        else await new Promise(setImmediate)
      }
      for (const connection of connections) connection.accept()
      for (const gate of gates) gate.resolve()
      await Promise.all(deliveries)
      for (const { events } of connections) {
        t.strictSame(foldEvents(events), full)
        t.equal(events.filter(({ type }) => type === 'end').length, 1)
      }
    }),
    { numRuns: limitRuns(100) },
  )
})

t.test('a turn that fails fails for every connection', async (t) => {
  const { turn, gates } = startTurn(completeResponse().slice(0, 2), new Error('lost'))
  const first = readResponse(turn.createFirstHandle(never))
  gates[0]!.resolve()
  await new Promise(setImmediate)
  const joined = readResponse(turn.join(1, never))
  gates[1]!.resolve()
  await Promise.all([t.rejects(first, { message: 'lost' }), t.rejects(joined, { message: 'lost' })])
  await t.rejects(readResponse(turn.join(2, never)), { message: 'lost' }, 'also for a later one')
})

t.test('the fastest connection determines when the engine is read', async (t) => {
  const { turn, gates } = startTurn(completeResponse())
  const [slow, fast] = [new Connection(), new Connection()]
  const deliveries = [turn.createFirstHandle(never).deliver(slow), turn.join(1, never).deliver(fast)]
  slow.block()
  for (const gate of gates) gate.resolve()
  await deliveries[1]
  t.equal(fast.events.at(-1)?.type, 'end')
  t.not(slow.events.at(-1)?.type, 'end')
  slow.accept()
  await deliveries[0]
  t.equal(slow.events.at(-1)?.type, 'end')
})
