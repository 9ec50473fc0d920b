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
import { CLIENTS } from '../engines/wires/clients.ts'
import { QUESTIONS, REQUESTS } from '../engines/wires/requests.ts'
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
  return pull(client, REQUESTS[wire.call]!.request(wire.stream), noAbort)
}

async function catchError(run: () => Promise<unknown>): Promise<unknown> {
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
  const thrown = await catchError(async () => {
    for await (const batch of await getResponse(t, engine, wire, CUT_AT))
      for (const event of batch) if (event.type === 'delta') ids.push(...(event.tokenIds ?? []))
  })
  t.match(thrown, { code: 'engine_lost' }, 'the request fails')
  t.ok(ids.length > 0 && ids.length < wire.core!.ids.length, `after ${ids.length} ids`)
  t.strictSame(ids, wire.core!.ids.slice(0, ids.length), 'the ids before the cut are as sampled')
}

for (const file of readdirSync(FOLDER)) {
  const text = readFileSync(join(FOLDER, file), 'utf8')
  const { engine, wires, questions } = JSON.parse(text) as RecordedEngine
  t.test(engine, async (t) => {
    for (const { question, exchanges, answer: expected } of questions)
      t.test(question, async (t) => {
        const actual = await QUESTIONS[question]!(await createClient(t, engine, exchanges))
        t.strictSame(JSON.parse(JSON.stringify(actual)), expected)
      })
    for (const wire of wires)
      t.test(wire.name, async (t) => {
        const { rejectedStatus } = REQUESTS[wire.call]!
        if (rejectedStatus !== undefined) {
          const thrown = await catchError(async () => collect(await getResponse(t, engine, wire)))
          t.ok(thrown instanceof ProxyError)
          t.match(thrown, { code: 'engine_rejected', status: rejectedStatus })
          return
        }
        await checkSampled(t, engine, wire)
        const isStreamed = wire.exchanges.at(-1)!.contentType.includes('event-stream')
        if (isStreamed && wire.core!.ids.length > 10) await checkCut(t, engine, wire)
      })
  })
}
