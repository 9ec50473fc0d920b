/** Records the wire of a running engine: each request complete and streamed, by the released client. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { collect, noAbort } from '../../conformance/engine-client.ts'
import { pull } from '../../helpers/event-stream.ts'
import { CACHE } from '../../helpers/install-once.ts'
import type { CoreLog } from '../parts/core-log.ts'
import { CLIENTS } from './clients.ts'
import { QUESTIONS, REQUESTS } from './requests.ts'
import {
  type Exchange,
  type RecordedEngine,
  type RecordedQuestion,
  startRecorder,
  type Wire,
} from './wire.ts'

const PATH = new RegExp(`${CACHE}/[^"\\\\ ]+`, 'g')

/** @param engine the name of the file, such as `vllm-0.32.0` */
export async function recordWires(engine: string, url: string, core: CoreLog): Promise<void> {
  const kind = engine.split('-')[0]!
  const wires: Wire[] = []
  for (const [call, { request, rejectedStatus }] of Object.entries(REQUESTS))
    for (const stream of [false, true]) {
      const exchanges: Exchange[] = []
      const recorder = await startRecorder(url, (exchange) => exchanges.push(exchange))
      const client = CLIENTS[kind]!({ url: recorder.url })
      const before = core.requests().length
      // The engine's rejections are part of its wire.
      await collect(pull(client, request(stream), noAbort)).catch(() => {})
      await client.close()
      await recorder.close()
      const coreRequest = rejectedStatus ? undefined : core.requests().slice(before).at(-1)
      const sampled = coreRequest && {
        prompt: [...coreRequest.prompt],
        ids: coreRequest.ids,
        logprobs: coreRequest.logprobs,
      }
      wires.push({
        name: `${call}, ${stream ? 'streamed' : 'whole'}`,
        call,
        stream,
        exchanges,
        core: sampled ?? null,
      })
    }
  const questions: RecordedQuestion[] = []
  for (const [question, sendRequest] of Object.entries(QUESTIONS)) {
    const exchanges: Exchange[] = []
    const recorder = await startRecorder(url, (exchange) => exchanges.push(exchange))
    const client = CLIENTS[kind]!({ url: recorder.url })
    const response = await sendRequest(client)
    await client.close()
    await recorder.close()
    if (response !== undefined) questions.push({ question, exchanges, answer: response })
  }
  const recorded: RecordedEngine = { engine, wires, questions }
  writeFileSync(
    join(import.meta.dirname, 'fixtures', `${engine}.json`),
    // Servers report the path of their model.
    `${JSON.stringify(recorded, undefined, 1).replaceAll(PATH, 'MODEL')}\n`,
  )
}
