/**
 * Recorded wires of released engines, replayed: the clients read from them what the engine's core sampled.
 * `test/engines/wires` records them from the engines themselves.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { ProxyError } from '../../src/base/errors.ts'
import { findInexactReason } from '../../src/proxy/session/prompts/exactness.ts'
import { collect, fold, noAbort } from '../conformance/engine-client.ts'
import { CALLS, QUESTIONS } from '../engines/wires/calls.ts'
import { CLIENTS } from '../engines/wires/clients.ts'
import { type Exchange, type RecordedEngine, startReplay, type Wire } from '../engines/wires/wire.ts'
import { pull } from '../helpers/event-stream.ts'

const FOLDER = join(import.meta.dirname, '../engines/wires/fixtures')
const CUT_AT = 0.6

async function createClient(t: Test, engine: string, exchanges: readonly Exchange[], cutAt?: number) {
  const replay = await startReplay(exchanges, cutAt)
  const client = CLIENTS[engine.split('-')[0]!]!({ url: replay.url })
  t.teardown(async () => {
    await client.close()
    await replay.close()
  })
  return client
}

async function getResponse(t: Test, engine: string, wire: Wire, cutAt?: number) {
  const client = await createClient(t, engine, wire.exchanges, cutAt)
  return pull(client, CALLS[wire.call]!.request(wire.stream), noAbort)
}

async function thrownBy(run: () => Promise<unknown>): Promise<unknown> {
  try {
    return await run()
  } catch (thrown) {
    return thrown
  }
}

async function checkSampled(t: Test, engine: string, wire: Wire): Promise<void> {
  const completion = fold(await collect(await getResponse(t, engine, wire)))
  t.equal(findInexactReason(completion), null, 'exact')
  t.strictSame([...completion.start!.promptTokenIds!.toArray()], wire.core!.prompt, 'the prompt')
  t.strictSame([...completion.tokenIds], wire.core!.ids, 'the ids')
  const far = [...completion.logprobs].filter(
    (value, index) => Math.abs(value - wire.core!.logprobs[index]!) > 1e-6,
  )
  t.strictSame(far, [], 'the logprobs')
}

async function checkCut(t: Test, engine: string, wire: Wire): Promise<void> {
  const ids: number[] = []
  const thrown = await thrownBy(async () => {
    for await (const batch of await getResponse(t, engine, wire, CUT_AT))
      for (const event of batch) if (event.type === 'delta') ids.push(...(event.tokenIds ?? []))
  })
  t.match(thrown, { code: 'engine_lost' }, 'the request fails')
  t.ok(ids.length > 0 && ids.length < wire.core!.ids.length, `after ${ids.length} ids`)
  t.strictSame(ids, wire.core!.ids.slice(0, ids.length), 'those before are as sampled')
}

for (const file of readdirSync(FOLDER)) {
  const text = readFileSync(join(FOLDER, file), 'utf8')
  const { engine, wires, questions } = JSON.parse(text) as RecordedEngine
  t.test(engine, async (t) => {
    for (const { question, exchanges, answer: response } of questions)
      t.test(question, async (t) => {
        const made = await QUESTIONS[question]!(await createClient(t, engine, exchanges))
        t.strictSame(JSON.parse(JSON.stringify(made)), response)
      })
    for (const wire of wires)
      t.test(wire.name, async (t) => {
        const { refused: rejected } = CALLS[wire.call]!
        if (rejected !== undefined) {
          const thrown = await thrownBy(async () => collect(await getResponse(t, engine, wire)))
          t.ok(thrown instanceof ProxyError)
          t.match(thrown, { code: 'engine_rejected', status: rejected })
          return
        }
        await checkSampled(t, engine, wire)
        const isStreamed = wire.exchanges.at(-1)!.contentType.includes('event-stream')
        if (isStreamed && wire.core!.ids.length > 10) await checkCut(t, engine, wire)
      })
  })
}
