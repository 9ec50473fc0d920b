/** Responses that continue through workers, whose frames may arrive at once. */
import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import type { GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../../../../src/protocol/token-ids/prompt-ids.ts'
import { createLocalBackend } from '../../../../../src/proxy/engines/dispatch/local-backend.ts'
import type { Backend } from '../../../../../src/proxy/engines/port/backend.ts'
import type { EngineClient } from '../../../../../src/proxy/engines/port/engine-client.ts'
import { RelayRequest } from '../../../../../src/proxy/relay/relay-request.ts'
import type { ContinuationPlanner } from '../../../../../src/proxy/session/prompts/continuation.ts'
import { ResponseContinuation } from '../../../../../src/proxy/session/turn/response-continuation.ts'
import { FakeClock } from '../../../../helpers/fake-clock.ts'

const REQUEST: GenerationRequest = {
  ...{ kind: 'chat', requestId: 'r', sessionId: 's', stream: true },
  ...{ body: { model: 'm', messages: [] }, promptTokenIds: PromptIds.of(1, 2) },
}

/**
 * Starts a worker whose engine samples two tokens and fails. The proxy reads both frames before it forwards
 * either.
 */
function startFailingWorker(failures: ProxyError[]): Pick<Backend, 'generate'> {
  return {
    generate: (request, sink, signal) => {
      const relayed = new RelayRequest({
        ...{ workerId: 'w', windowBytes: 1_000, promptBase: undefined, timeoutMs: 1_000 },
        ...{ clock: new FakeClock(), onPrompt: () => {}, acknowledge: () => {}, onEnd: () => {} },
        continuesAfter: request.continuesAfter,
      })
      const pushed = relayed.pushTo(sink, signal)
      const header = { request_id: request.requestId, seq: 1 }
      const start = { engine: 'e', model: 'm' }
      const deltas = [{ token_ids: [7, 8], logprobs: [-1, -2] }]
      relayed.receiveChunk({ type: 'completion_chunk', ...header, start, deltas }, 10)
      const failure = failures.shift()
      if (failure === undefined)
        relayed.receiveEndV2(
          { type: 'completion_response', ...header, seq: 2, finish_reason: 'stop', error: null },
          10,
        )
      else relayed.fail(failure)
      return pushed
    },
  }
}

const planner: ContinuationPlanner = {
  obstacle: undefined,
  plan: (sampled) => ({
    request: { ...REQUEST, promptTokenIds: PromptIds.of(1, 2, ...sampled) } as GenerationRequest,
    stops: { read: () => undefined, matched: undefined } as never,
  }),
}

for (const [title, continuation, code, expected] of [
  ['a response that continues retains them', planner, 'engine_lost', [7, 8, 7, 8]],
  ['a response that does not continue leaves them to another attempt', undefined, 'engine_lost', []],
  ['an error after which it does not continue leaves them, too', planner, 'engine_failed', []],
] as const)
  t.test(`tokens that arrive together with the loss of their engine: ${title}`, async (t) => {
    const failure = new ProxyError(code, 'lost')
    const backend = startFailingWorker([failure])
    const options = { backend, request: REQUEST, continuation, announcedVersion: () => undefined }
    const response = new ResponseContinuation(options)
    const events: GenerationEvent[] = []
    const write = (batch: readonly GenerationEvent[]) => void events.push(...batch)
    const pushed = response.pushTo({ write } as never, new AbortController().signal)
    if (expected.length > 0) await pushed
    else await t.rejects(pushed, { code })
    const ids = events.flatMap((event) => (event.type === 'delta' ? [...(event.tokenIds ?? [])] : []))
    t.strictSame(ids, expected)
    const spans = response.engineRequests?.map(({ start, end, end_reason }) => [start, end, end_reason])
    t.strictSame(
      spans,
      expected.length > 0
        ? [
            [0, 2, code],
            [2, 4, 'stop'],
          ]
        : undefined,
    )
  })

/**
 * Serves a response by an engine that is cut after its first three tokens.
 * @param during runs between the first token and the next two
 */
async function continueResponse(
  code: 'engine_lost' | 'engine_aborted' | 'shutting_down',
  during: (backend: ReturnType<typeof createLocalBackend>, setVersion: (version: string) => void) => unknown,
) {
  let weightVersion = 'v1'
  let requests = 0
  const client: EngineClient = {
    ...{ name: 'e', kind: 'vllm', takesTokenIds: true, takesImages: true },
    checkHealth: async () => ({ models: [{ id: 'm' }], weightVersion }),
    close: async () => {},
    async generate({ minWeightVersion }, sink) {
      requests += 1
      await sink.write([{ type: 'start', engine: 'e' }])
      if (requests > 1) {
        minVersions.push(minWeightVersion)
        const rest: GenerationEvent = { type: 'delta', tokenIds: [10], logprobs: [-1] }
        await sink.write([rest, { type: 'end', finishReason: 'stop' }])
        return
      }
      await sink.write([{ type: 'delta', tokenIds: [7], logprobs: [-1] }])
      await during(backend, (version) => {
        weightVersion = version
      })
      await sink.write([{ type: 'delta', tokenIds: [8, 9], logprobs: [-1, -1] }])
      throw new ProxyError(code, 'cut')
    },
  }
  const minVersions: (string | undefined)[] = []
  const backend = createLocalBackend({ clients: [client], clock: new FakeClock() })
  await backend.listModels()
  const options = { backend, request: REQUEST, continuation: planner, announcedVersion: () => undefined }
  const response = new ResponseContinuation(options)
  const events: GenerationEvent[] = []
  const write = (batch: readonly GenerationEvent[]) => void events.push(...batch)
  await response.pushTo({ write } as never, new AbortController().signal)
  await backend.close()
  const versions = response.engineRequests?.map(({ weight_version: version }) => version)
  const spans = events.flatMap((event) =>
    event.type === 'delta' ? (event.details?.weight_versions ?? []) : [],
  )
  const [start] = events.flatMap((event) => (event.type === 'start' ? [event.weightVersion] : []))
  return { versions, spans, start, minVersions }
}

for (const code of ['engine_lost', 'engine_aborted', 'shutting_down'] as const) {
  t.test(`a part that ended with ${code} after its weights had changed has no version`, async (t) => {
    const changed = await continueResponse(code, async (backend, setVersion) => {
      backend.pause()
      setVersion('v2')
      await backend.resume()
    })
    t.strictSame(changed, {
      versions: [null, 'v2'],
      spans: [{ version: 'v2', start: 3, end: 4 }],
      start: 'v1',
      minVersions: ['v1'],
    })
  })
}

t.test('a part that ended while its weights were the same has their version', async (t) => {
  const { versions, spans } = await continueResponse('engine_aborted', async (backend) => {
    backend.pause()
    await backend.resume()
  })
  t.strictSame(versions, ['v1', 'v1'])
  t.match(spans, [{ version: 'v1', start: 0, end: 3 }, { start: 3 }])
})

for (const [when, sampled, expected] of [
  ['before its first token, the rest of it requests the experts of the prompt', [], [0, 0]],
  ['after tokens, the rest of it requests those that no engine has reported', [7, 8], [0, 3]],
] as const)
  t.test(`when a response with routed experts is cut ${when}`, async (t) => {
    const starts: (number | undefined)[] = []
    const backend: Pick<Backend, 'generate'> = {
      generate: async ({ expertsStart }, sink) => {
        starts.push(expertsStart)
        const isFirst = starts.length === 1
        await sink.write([
          { type: 'start', engine: 'e' },
          { type: 'delta', tokenIds: isFirst ? [...sampled] : [9] },
        ])
        if (isFirst) throw new ProxyError('engine_aborted', 'aborted')
        await sink.write([{ type: 'end', finishReason: 'stop' }])
      },
    }
    const captured = { record: { routedExperts: true }, expertsStart: 0 }
    const continuation: ContinuationPlanner = {
      ...planner,
      plan: (ids) => {
        const rest = planner.plan(ids) as { request: GenerationRequest; stops: never }
        return { ...rest, request: { ...rest.request, ...captured } }
      },
    }
    const options = { backend, continuation, announcedVersion: () => undefined }
    const response = new ResponseContinuation({ ...options, request: { ...REQUEST, ...captured } })
    await response.pushTo({ write: () => undefined }, new AbortController().signal)
    t.strictSame(starts, expected)
  })
