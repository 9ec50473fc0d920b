/** Responses that continue through workers, whose frames may arrive at once. */
import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import type { GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../../../../src/protocol/token-ids/prompt-ids.ts'
import type { Backend } from '../../../../../src/proxy/engines/port/backend.ts'
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
