/** The routes for chat and completion requests. */
import { randomUUID } from 'node:crypto'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { ProxyError, toProxyError } from '../../base/errors.ts'
import { CompletionBuilder } from '../../protocol/canonical/completion.ts'
import type { EventSink } from '../../protocol/canonical/events.ts'
import type { CanonicalRequest, ChatBody, CompletionBody } from '../../protocol/canonical/request.ts'
import { SseReply } from '../../proxy/http/agent/sse-reply.ts'
import { createDisconnectSignal } from '../../proxy/http/transport/on-close.ts'
import type { EmbeddedEngine } from '../engine/embedded-engine.ts'
import { chatFormat } from './chat-wire.ts'
import { completionFormat } from './completion-wire.ts'
import { buildVllmError } from './errors.ts'
import {
  type AnyCompletionRequest,
  type CompletionRequest,
  checkChatRequest,
  checkCompletionRequest,
} from './request-schemas.ts'
import {
  type ResponseFormat,
  type ResponseHead,
  readResponseFields,
  StreamFormatter,
} from './response-wire.ts'

/** Counters for tests and benchmarks. They are not part of any response. */
export interface EngineCounters {
  /** The number of running completions. */
  running: number
  /** The number of completions that were sampled to their end. */
  served: number
  /** The number of completions that were cancelled because their client disconnected. */
  aborted: number
  /** The number of completions that the engine rejected or that failed. */
  failed: number
}

interface CompletionRoutesOptions {
  engine: EmbeddedEngine
  counters: EngineCounters
}

/** A parsed request with the format of its response. */
interface EngineRequest {
  format: ResponseFormat
  body: AnyCompletionRequest & { logprobs?: unknown }
  generation: CanonicalRequest
}

export async function completionRoutes(app: FastifyInstance, options: CompletionRoutesOptions) {
  app.post('/v1/chat/completions', (request, reply) => {
    const body = checkChatRequest(request.body)
    const generation: CanonicalRequest = { kind: 'chat', body: body as ChatBody }
    return handleCompletion({ format: chatFormat, body, generation }, options, request, reply)
  })
  app.post('/v1/completions', (request, reply) => {
    const body = checkCompletionRequest(request.body)
    const prompt = getSinglePrompt(body.prompt)
    const generation: CanonicalRequest = { kind: 'completion', body: { ...body, prompt } as CompletionBody }
    const format =
      typeof body.prompt_logprobs === 'number' ? createScoringFormat(options.engine, body) : completionFormat
    return handleCompletion({ format, body, generation }, options, request, reply)
  })
}

/** Returns the completion format for requests with `prompt_logprobs`, which scores the prompt's tokens. */
function createScoringFormat(
  engine: EmbeddedEngine,
  { prompt_logprobs: count }: CompletionRequest,
): ResponseFormat {
  return {
    ...completionFormat,
    buildComplete: (head, completion, fields) => {
      const response = completionFormat.buildComplete(head, completion, fields) as { choices: object[] }
      const prompt_logprobs = buildPromptLogprobs(
        engine,
        completion.start?.promptTokenIds?.toArray() ?? [],
        count ?? 0,
      )
      return { ...response, choices: response.choices.map((choice) => ({ ...choice, prompt_logprobs })) }
    },
  }
}

/** Returns the prompt. Unlike vLLM, this engine accepts only one prompt, alone or in a list. */
function getSinglePrompt(prompt: string | number[] | string[] | number[][]): string | number[] {
  if (typeof prompt === 'string') return prompt
  const [first] = prompt
  return typeof first === 'string' || Array.isArray(first) ? first : (prompt as number[])
}

async function handleCompletion(
  { format, body, generation }: EngineRequest,
  { engine, counters }: CompletionRoutesOptions,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<unknown> {
  rejectUnknownModel(body.model, engine)
  const requestId = getRequestId(request, body)
  const stream = body.stream === true
  const signal = createDisconnectSignal(reply)
  const generate = (sink: EventSink) =>
    countCompletion(counters, signal, () =>
      engine.generate({ ...generation, requestId, sessionId: requestId, stream }, sink, signal),
    )
  const head: ResponseHead = {
    id: format.idPrefix + requestId,
    object: stream ? format.chunkObject : format.completeObject,
    created: Math.floor(Date.now() / 1000),
    model: engine.model,
  }
  const fields = readResponseFields(body)
  if (!stream) {
    const completion = new CompletionBuilder()
    await generate(completion)
    return format.buildComplete(head, completion, fields)
  }
  await sendStream(generate, new StreamFormatter(head, format.createChunkBuilder(fields), fields), reply)
  return reply
}

function rejectUnknownModel(model: string | null | undefined, engine: EmbeddedEngine): void {
  if (!model || model === engine.model) return
  throw new ProxyError('engine_rejected', `The model \`${model}\` does not exist.`, {
    status: 404,
    param: 'model',
  })
}

/** Returns the request id. The header takes precedence over the body, as in vLLM. */
function getRequestId(request: FastifyRequest, body: AnyCompletionRequest): string {
  const header = request.headers['x-request-id']
  return typeof header === 'string' ? header : (body.request_id ?? randomUUID().replaceAll('-', ''))
}

/** Runs a completion and counts its outcome. */
async function countCompletion(
  counters: EngineCounters,
  signal: AbortSignal,
  generate: () => Promise<void>,
): Promise<void> {
  counters.running++
  let outcome: 'served' | 'aborted' | 'failed' = 'failed'
  try {
    await generate()
    outcome = 'served'
  } finally {
    counters.running--
    counters[signal.aborted ? 'aborted' : outcome]++
  }
}

/**
 * Sends a stream. An error before the first event becomes an HTTP error, a later one an event of the stream.
 */
async function sendStream(
  generate: (sink: EventSink) => Promise<void>,
  text: StreamFormatter,
  reply: FastifyReply,
): Promise<void> {
  let sse: SseReply | undefined
  const write: EventSink['write'] = (batch) => {
    sse ??= new SseReply(reply)
    return sse.send(text.write(batch))
  }
  try {
    await generate({ write })
  } catch (thrown) {
    if (!sse) throw thrown
    void sse.send(`data: ${JSON.stringify(buildVllmError(toProxyError(thrown)))}\n\ndata: [DONE]\n\n`)
  }
  sse?.end()
}

/** A token's entry in `prompt_logprobs`. */
interface PromptLogprob {
  logprob: number
  rank: number
  decoded_token: string
}

/**
 * Returns, for each token of the prompt, the logprobs of the token itself and of the most probable ones, keyed by token
 * id; null for the first, which has no context (`PromptLogprobs` of `vllm/logprobs.py`).
 */
function buildPromptLogprobs(
  engine: EmbeddedEngine,
  prompt: ArrayLike<number>,
  count: number,
): (Record<string, PromptLogprob> | null)[] {
  const ids = Array.from(prompt)
  const ranked = engine.rankTokens(ids, 1, count).map(({ logprob, rank, top }, i) => {
    const entries = top.map((other, index): [number, PromptLogprob] => [
      other.id,
      { logprob: other.logprob, rank: index + 1, decoded_token: engine.detokenize([other.id]) },
    ])
    const id = ids[i + 1]!
    const own: [number, PromptLogprob] = [id, { logprob, rank, decoded_token: engine.detokenize([id]) }]
    return Object.fromEntries([...entries, own])
  })
  return [null, ...ranked]
}
