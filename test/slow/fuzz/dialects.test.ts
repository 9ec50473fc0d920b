/**
 * Requests with errors anywhere, in every dialect, sent to the complete proxy except for its sockets.
 * `FUZZ_RUNS=20000` runs that many of each (and needs `--timeout=1200` of tap). The output of a failure (its
 * seed, its path, and the smallest failing body) reproduces it.
 */
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import type { GenerationEvent } from '../../../src/protocol/canonical/events.ts'
import { PromptIds } from '../../../src/protocol/token-ids/prompt-ids.ts'
import { buildApp } from '../../../src/proxy/http/app.ts'
import { createMutations } from '../../helpers/mutations.ts'
import { respond } from '../../helpers/scripted-backend.ts'
import { createServerParts } from '../../helpers/sessions-api.ts'
import { watchStalls } from '../../helpers/stall-watch.ts'
import { openMemoryStore } from '../../helpers/store-in-process.ts'
import { checkResponse, DIALECTS, type HttpResponse } from './dialects.ts'

const RUNS = Number(process.env.FUZZ_RUNS ?? 300)
/** After this number of requests, everything that they recorded is read and deleted. */
const REQUESTS_PER_SESSION = 100
const HANG_MS = 30_000

/** A response with every kind of content. */
const COMPLETION_EVENTS: GenerationEvent[] = [
  { type: 'start', engine: 'scripted', model: 'scripted', promptTokenIds: PromptIds.of(1, 2) },
  { type: 'delta', reasoning: 'hm', tokenIds: [3], logprobs: [-1] },
  { type: 'delta', content: 'hi', tokenIds: [4], logprobs: [-1] },
  {
    type: 'delta',
    toolCalls: [{ index: 0, id: 'c', function: { name: 'run', arguments: '{"command":"ls"}' } }],
    tokenIds: [5],
    logprobs: [-1],
  },
  {
    type: 'end',
    finishReason: 'tool_calls',
    usage: { prompt_tokens: 2, completion_tokens: 3, total_tokens: 5 },
  },
]

/** Starts a proxy that receives requests without sockets. */
async function startInjected(t: Test) {
  const store = await openMemoryStore()
  const { options, sessions, backend } = createServerParts(store)
  backend.script = () => respond(COMPLETION_EVENTS)
  const { fastify: app } = await buildApp(options)
  t.teardown(async () => {
    await sessions.close()
    await app.close()
    await store.close()
  })
  return async (method: 'GET' | 'POST' | 'DELETE', url: string, payload?: string): Promise<HttpResponse> => {
    const late = new AbortController()
    const hang = sleep(HANG_MS, undefined, { signal: late.signal }).then(() => {
      throw new Error(`no response within ${HANG_MS} ms`)
    })
    hang.catch(() => {})
    const response = app.inject({ method, url, ...(payload !== undefined && { payload }) })
    return Promise.race([response, hang]).finally(() => late.abort())
  }
}

for (const [name, { path, bodies, checkRejection }] of Object.entries(DIALECTS)) {
  t.test(`${name}: ${RUNS} invalid bodies are served or rejected, and leave readable sessions`, async (t) => {
    const inject = await startInjected(t)
    let requestCount = 0
    const statuses: Record<number, number> = {}
    const checkRecorded = async () => {
      for (const part of ['', '?messages=new', '/trajectories', '/trajectories?select=main&per_turn=true']) {
        const { statusCode, body } = await inject('GET', `/sessions/s${part}`)
        // The first accepted request of a session creates it.
        assert.ok(statusCode === 200 || statusCode === 404, `${part}: ${statusCode} ${body}`)
        assert.doesNotMatch(JSON.stringify(JSON.parse(body).turns ?? []), /"status":"(open|failed)"/)
      }
      await inject('DELETE', '/sessions/s')
    }
    const sendRequest = async (body: string) => {
      const response = await inject('POST', `/s/v1/${path}`, body)
      const { statusCode } = response
      statuses[statusCode] = (statuses[statusCode] ?? 0) + 1
      checkResponse(response, checkRejection)
    }
    const { withoutStall } = await watchStalls(t)
    await fc.assert(
      fc.asyncProperty(createMutations(...bodies), async (body) => {
        await withoutStall(() => sendRequest(body))
        requestCount += 1
        if (requestCount % REQUESTS_PER_SESSION === 0) await checkRecorded()
      }),
      { numRuns: RUNS },
    )
    await checkRecorded()
    t.ok((statuses[200] ?? 0) > RUNS / 50, `some are accepted: ${JSON.stringify(statuses)}`)
    t.ok((statuses[400] ?? 0) > RUNS / 50, 'and some are rejected')
  })
}
