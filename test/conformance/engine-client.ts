/** The conformance suite of every engine client. */
import type { Test } from 'tap'
import { CompletionBuilder } from '../../src/protocol/canonical/completion.ts'
import type { GenerationEvent } from '../../src/protocol/canonical/events.ts'
import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../src/protocol/token-ids/prompt-ids.ts'
import type { EngineClient } from '../../src/proxy/engines/port/engine-client.ts'
import { findInexactReason } from '../../src/proxy/session/prompts/exactness.ts'
import { type EventStream, pull } from '../helpers/event-stream.ts'

export interface EngineUnderTest {
  client: EngineClient
  /** A model that the engine serves. */
  model: string
  /** Body fields that make a generation continue until it is cancelled. */
  endless: Record<string, unknown>
  /** The number of generations in progress. */
  running(): number
  close(): Promise<void>
}

let requestCount = 0

export function chatRequest(body: Record<string, unknown>, stream = true): GenerationRequest {
  requestCount += 1
  const messages = [{ role: 'user' as const, content: 'Hello' }]
  return {
    requestId: `request-${requestCount}`,
    sessionId: 'session-1',
    stream,
    kind: 'chat',
    body: { messages, max_tokens: 4, ...body },
  }
}

export function completionRequest(
  body: { prompt: string | number[]; [field: string]: unknown },
  stream = true,
): GenerationRequest {
  requestCount += 1
  return {
    requestId: `request-${requestCount}`,
    sessionId: 'session-1',
    stream,
    kind: 'completion',
    body: { max_tokens: 4, ...body },
  }
}

/** Creates a chat request in token mode. */
export function tokenRequest(
  promptTokenIds: readonly number[],
  body: Record<string, unknown>,
  stream = true,
): GenerationRequest {
  return { ...chatRequest(body, stream), promptTokenIds: PromptIds.from(promptTokenIds) }
}

export const noAbort = new AbortController().signal

export async function collect(stream: EventStream): Promise<GenerationEvent[]> {
  const events: GenerationEvent[] = []
  for await (const batch of stream) events.push(...batch)
  return events
}

export function fold(events: readonly GenerationEvent[]): CompletionBuilder {
  const completion = new CompletionBuilder()
  for (const event of events) completion.add(event)
  return completion
}

/**
 * Resolves when `condition` holds.
 * @throws Error if it does not hold within `limitMs`
 */
export async function eventually(condition: () => boolean, limitMs = 2_000): Promise<void> {
  const untilMs = performance.now() + limitMs
  while (!condition()) {
    if (performance.now() > untilMs) throw new Error(`not within ${limitMs} ms: ${condition}`)
    await new Promise((resolve) => setTimeout(resolve, 2))
  }
}

/**
 * Defines the suite.
 * @param mode whether the suite's chats contain messages for the engine to render, or the ids of the prompt
 */
export function engineClientSuite(
  t: Test,
  setUp: () => Promise<EngineUnderTest>,
  mode: 'chat' | 'token' = 'chat',
): void {
  const chat = (body: Record<string, unknown>, stream = true) =>
    mode === 'chat' ? chatRequest(body, stream) : tokenRequest([5, 6, 7], body, stream)
  const withEngine = (title: string, run: (t: Test, engine: EngineUnderTest) => Promise<void>) =>
    t.test(title, async (t) => {
      const engine = await setUp()
      t.teardown(() => engine.close())
      await run(t, engine)
    })

  for (const stream of [true, false]) {
    const how = stream ? 'streamed' : 'complete'
    withEngine(
      `${how}: a chat is one start, deltas and one end, with exact tokens`,
      async (t, { client, model }) => {
        const events = await collect(pull(client, chat({ model }, stream), noAbort))
        assertWellFormed(t, events)
        const completion = fold(events)
        t.equal(findInexactReason(completion), null)
        t.equal(completion.start?.engine, client.name)
        t.equal(completion.end?.finishReason, 'length')
        t.equal(completion.tokenIds.length, 4)
        if (mode === 'token')
          t.same([...completion.start!.promptTokenIds!], [5, 6, 7], 'the ids that were sent')
      },
    )

    withEngine(
      `${how}: a completion of token ids reports them as its prompt`,
      async (t, { client, model }) => {
        const request = completionRequest({ model, prompt: [5, 6, 7] }, stream)
        const completion = fold(await collect(pull(client, request, noAbort)))
        t.same([...(completion.start?.promptTokenIds ?? [])], [5, 6, 7])
        t.equal(findInexactReason(completion), null)
        t.equal(completion.tokenIds.length, 4)
      },
    )

    withEngine(
      `${how}: logprobs: false or null does not turn recording off`,
      async (t, { client, model }) => {
        for (const logprobs of [false, null]) {
          const body = { model, logprobs, return_token_ids: logprobs, stream_options: null }
          const completion = fold(await collect(pull(client, chat(body, stream), noAbort)))
          t.equal(findInexactReason(completion), null)
          t.same(completion.logprobsContent, [], 'and the agent receives none')
        }
      },
    )

    withEngine(
      `${how}: an agent that requests logprobs gets one entry per token`,
      async (t, { client, model }) => {
        const completion = fold(await collect(pull(client, chat({ model, logprobs: true }, stream), noAbort)))
        t.same(
          completion.logprobsContent.map((entry) => entry.logprob),
          completion.logprobs,
        )
        t.equal(completion.logprobsContent.length, 4)
        const text = completion.logprobsContent.map((entry) => entry.token).join('')
        t.ok(text.length > 0, 'with their text')
        if (mode === 'chat') t.equal(text, completion.content)
      },
    )

    withEngine(`${how}: aborting cancels the engine's work and throws the reason`, async (t, engine) => {
      const controller = new AbortController()
      const reason = new Error('agent left')
      const request = chat({ model: engine.model, ...engine.endless }, stream)
      const pulled = drain(pull(engine.client, request, controller.signal))
      pulled.catch(() => {})
      await eventually(() => engine.running() === 1)
      controller.abort(reason)
      await t.rejects(pulled, reason)
      await eventually(() => engine.running() === 0, 100)
    })
  }

  withEngine('token mode is served, or rejected before the engine receives a request', async (t, engine) => {
    const { client, model } = engine
    const request = tokenRequest([5, 6, 7], { model, ...(client.takesTokenIds ? {} : engine.endless) })
    const events = collect(pull(client, request, noAbort))
    if (!client.takesTokenIds) {
      await t.rejects(events, { code: 'unsupported', status: 400 })
      t.equal(engine.running(), 0)
      return
    }
    const completion = fold(await events)
    t.same([...completion.start!.promptTokenIds!], [5, 6, 7])
    t.equal(findInexactReason(completion), null)
  })

  withEngine('the engine receives no request before the first pull', async (t, engine) => {
    const stream = pull(engine.client, chat({ model: engine.model, ...engine.endless }), noAbort)
    await new Promise((resolve) => setImmediate(resolve))
    t.equal(engine.running(), 0)
    await stream[Symbol.asyncIterator]().return?.(undefined)
  })

  withEngine(
    'an already aborted signal throws its reason before the engine receives a request',
    async (t, engine) => {
      const reason = new Error('agent left')
      const request = chat({ model: engine.model, ...engine.endless })
      await t.rejects(collect(pull(engine.client, request, AbortSignal.abort(reason))), reason)
      t.equal(engine.running(), 0)
    },
  )

  withEngine('leaving the loop early cancels the work', async (t, engine) => {
    const request = chat({ model: engine.model, ...engine.endless })
    for await (const batch of pull(engine.client, request, noAbort)) {
      t.ok(batch.length > 0)
      break
    }
    await eventually(() => engine.running() === 0, 100)
  })

  withEngine('a consumer that stops reading does not make memory grow', async (t, engine) => {
    const request = chat({ model: engine.model, ...engine.endless })
    const iterator = pull(engine.client, request, noAbort)[Symbol.asyncIterator]()
    await iterator.next()
    await new Promise((resolve) => setTimeout(resolve, 300))
    const { value } = await iterator.next()
    t.ok((value?.length ?? 0) < 2_000, 'read-ahead is bounded')
    await iterator.return?.(undefined)
  })

  withEngine('health names the models', async (t, { client, model }) => {
    const health = await client.checkHealth(noAbort)
    t.ok(health.models.some(({ id }) => id === model))
  })

  withEngine('requests can run concurrently', async (t, { client, model }) => {
    const all = await Promise.all(
      Array.from({ length: 8 }, () => collect(pull(client, chat({ model }), noAbort))),
    )
    for (const events of all) assertWellFormed(t, events)
  })
}

async function drain(stream: EventStream): Promise<void> {
  for await (const _ of stream);
}

function assertWellFormed(t: Test, events: readonly GenerationEvent[]): void {
  const types = events.map((event) => event.type)
  t.equal(types.indexOf('start'), 0, 'the start comes first')
  t.equal(types.lastIndexOf('start'), 0, 'and once')
  t.equal(types.indexOf('end'), types.length - 1, 'the end comes last and once')
}
