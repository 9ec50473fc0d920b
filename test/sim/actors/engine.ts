/** An inference engine with vLLM's wire format on a server of `node:http`. Its samples come from the oracle. */
import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { Machine } from '../world/machine.ts'
import type { SimSocket } from '../world/network.ts'
import type { World } from '../world/world.ts'
import {
  type ChatMessage,
  findRequestKey,
  type Generation,
  getContent,
  renderPrompt,
  type Sample,
  type SamplingParams,
  type StartedResponses,
  sample,
  type Token,
  type Vocabulary,
} from './oracle.ts'

interface GenerationBody {
  messages?: ChatMessage[]
  tools?: object[]
  /** The prompt on the completions route: text or ids. */
  prompt?: string | number[]
  stream?: boolean
  max_tokens?: number
  /** The newer name, which only the chat route has. */
  max_completion_tokens?: number
}

/** vLLM's default limit of a completion. */
const COMPLETION_TOKENS = 16

/** The number of tokens that are sent over time; the rest are sent at once, because clients time out after minutes. */
const TIMED_TOKENS = 100

/** The model that engines and the checker share. */
export interface Model {
  vocabulary: Vocabulary
  decode(ids: readonly number[]): string
  /** Absent if engines render their prompts: responses do not continue then. */
  startedResponses?: StartedResponses
}

/** Faults of an engine in its next requests. */
export type EngineFault = 'stall' | 'reset' | 'bad_ids' | 'missing_ids' | 'new_weights' | 'error' | 'truncate'

/** Cuts of the next responses: the finish reason `abort`, or an error event. */
export type Cut = 'abort' | 'error_event'

/**
 * The ways to report a weight version. `root`, `metadata`: in each chunk and response, so a complete response has the
 * version of its end; `spans`: a complete response has the version of each token; `route`: only `/weight_info`.
 */
const WEIGHT_REPORTS = ['root', 'metadata', 'spans', 'route'] as const

export class SimEngine {
  readonly name: string
  readonly address: { host: string; port: number }
  /** The weight versions, in order. */
  readonly #versions = ['1']
  /** Multiplies delays: a slow engine has requests in flight whenever a fault occurs. */
  readonly #slowness: number
  /** The number of generations in progress. */
  running = 0
  /** The number of generations that have started, by request key. */
  readonly startedCounts = new Map<string, number>()
  readonly generations: Generation[] = []
  readonly #weightReport: (typeof WEIGHT_REPORTS)[number]
  /** Called for each streamed token, with its index in the response and the socket. */
  onToken: (index: number, socket: SimSocket) => void = () => {}
  readonly #world: World
  readonly #model: Model
  #machine: Machine
  #server: Server
  #stop: () => void
  #fault: { fault: EngineFault; requests: number } | undefined
  #cut: { how: Cut; requests: number } | undefined
  /** The number of cut responses, by request key. */
  readonly cuts = new Map<string, number>()
  /** Resolves when the engine resumes; undefined while it is not paused. */
  #paused: PromiseWithResolvers<void> | undefined
  /** Whether the engine has `/is_paused`. */
  readonly #reportsPause: boolean
  /** The number of pauses, each of which aborts the requests in flight. */
  #pauses = 0

  constructor(world: World, name: string, model: Model, { reportsPause = false } = {}) {
    this.#reportsPause = reportsPause
    this.#world = world
    this.#model = model
    this.name = name
    this.#slowness = world.random.engine() < 0.4 ? 40 : 1
    this.#weightReport = WEIGHT_REPORTS[Math.floor(world.random.engine() * WEIGHT_REPORTS.length)]!
    this.address = { host: name, port: 8000 }
    this.#machine = new Machine(name)
    this.#server = this.#machine.run(() => this.#serve())
    this.#stop = this.#machine.run(() => world.network.listen(this.address, this.#server))
  }

  get isDead(): boolean {
    return this.#machine.isDead
  }

  kill(): void {
    this.#stop()
    this.resume()
    this.running = 0
    this.#machine.kill()
  }

  /** Starts a new process with the last weights of the old one. */
  restart(): void {
    if (!this.#machine.isDead) return
    this.#machine = new Machine(this.name)
    this.#server = this.#machine.run(() => this.#serve())
    this.#stop = this.#machine.run(() => this.#world.network.listen(this.address, this.#server))
  }

  get weights(): string {
    return this.#versions.at(-1)!
  }

  replaceWeights(version: string): void {
    this.#versions.push(version)
  }

  injectFault(fault: EngineFault, requests: number): void {
    this.#fault = { fault, requests }
  }

  /** Cuts the next responses at drawn tokens. */
  cutNext(how: Cut, requests: number): void {
    this.#cut = { how, requests }
  }

  /** Aborts all requests, and queues new ones until {@link resume}. */
  pause(): void {
    this.#paused ??= Promise.withResolvers()
    this.#pauses += 1
  }

  resume(): void {
    this.#paused?.resolve()
    this.#paused = undefined
  }

  #serve(): Server {
    const server = createServer((request, response) => void this.#handle(request, response))
    // Node checks these timeouts by the real clock.
    server.headersTimeout = 0
    server.requestTimeout = 0
    return server
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    response.on('error', () => {})
    const { url } = request
    if (request.method === 'GET') {
      if (url === '/v1/models') {
        const model = { id: 'sim', object: 'model', owned_by: 'vllm', max_model_len: 100_000 }
        return json(response, { object: 'list', data: [model] })
      }
      if (url === '/health') return json(response, {})
      if (url === '/is_paused' && this.#reportsPause)
        return json(response, { is_paused: this.#paused !== undefined })
      if (url === '/weight_info') return json(response, { weight_version: this.weights })
      return json(response, { detail: 'Not Found' }, 404)
    }
    const parts: Buffer[] = []
    try {
      for await (const part of request) parts.push(part)
    } catch {
      return
    }
    const body = JSON.parse(Buffer.concat(parts).toString()) as GenerationBody
    // The engine does not tokenize chats.
    if (url === '/tokenize' && body.messages) return json(response, { detail: 'Not Found' }, 404)
    if (url === '/tokenize') return json(response, { tokens: this.#getPromptIds(body) })
    const machine = this.#machine
    this.running += 1
    response.once('close', () => {
      if (!machine.isDead) this.running -= 1
    })
    const requestKey = findRequestKey(this.#getText(body))
    this.startedCounts.set(requestKey, (this.startedCounts.get(requestKey) ?? 0) + 1)
    this.#world.log(this.name, `starts ${requestKey}`)
    await this.#paused?.promise
    await this.#generate(requestKey, body, response)
  }

  #takeFault(): EngineFault | undefined {
    if (this.#fault === undefined || this.#fault.requests <= 0) return undefined
    this.#fault.requests -= 1
    return this.#fault.fault
  }

  #drawCut({ length }: readonly Token[], stream: boolean): { how: Cut; at: number } | undefined {
    if (this.#cut === undefined || this.#cut.requests <= 0) return undefined
    this.#cut.requests -= 1
    // A complete response has no events: it can only be aborted.
    const how = stream ? this.#cut.how : 'abort'
    const at = Math.floor(length * this.#world.random.cuts())
    // An error before the first token is no cut. An error after the last one cuts a response whose tokens are complete.
    return { how, at: how === 'error_event' ? at + 1 : at }
  }

  #countCut(requestKey: string, how: Cut, at: number): void {
    this.cuts.set(requestKey, (this.cuts.get(requestKey) ?? 0) + 1)
    this.#world.log(this.name, `cuts ${requestKey} at token ${at}: ${how}`)
  }

  /**
   * Samples a response, or the rest of the one that the prompt continues.
   * @returns the sample of this request, and the tokens of the complete response
   */
  #sample(
    prompt: readonly number[],
    params: SamplingParams,
  ): { sampled: Sample; responseTokens: readonly Token[] } {
    const { vocabulary, startedResponses } = this.#model
    const earlier = startedResponses?.find(prompt)
    if (earlier === undefined) {
      startedResponses?.add(prompt, params, sample(vocabulary, prompt, { ...params, maxTokens: undefined }))
      const sampled = sample(vocabulary, prompt, params)
      return { sampled, responseTokens: sampled.tokens }
    }
    const offset = prompt.length - earlier.prompt.length
    const { maxTokens = Number.POSITIVE_INFINITY } = params
    const sampled = sample(vocabulary, earlier.prompt, { ...earlier.params, maxTokens: offset + maxTokens })
    const rest = sampled.tokens.slice(offset)
    if (rest.length === 0)
      this.#world.reportViolation('an engine received a request that continues a complete response')
    return { sampled: { ...sampled, tokens: rest }, responseTokens: sampled.tokens }
  }

  #getText({ messages, prompt }: GenerationBody): string {
    if (messages) return messages.map(getContent).join('\n')
    return typeof prompt === 'string' ? prompt : this.#model.decode(prompt!)
  }

  #getPromptIds({ messages, prompt }: GenerationBody): number[] {
    if (messages) return renderPrompt(messages)
    return typeof prompt === 'string' ? this.#model.vocabulary.encode(prompt) : prompt!
  }

  async #generate(requestKey: string, body: GenerationBody, response: ServerResponse): Promise<void> {
    const { engine: random } = this.#world.random
    const { vocabulary } = this.#model
    const fault = this.#takeFault()
    const prompt = this.#getPromptIds(body)
    const limit = body.messages
      ? (body.max_completion_tokens ?? body.max_tokens)
      : (body.max_tokens ?? COMPLETION_TOKENS)
    const { sampled, responseTokens } = this.#sample(prompt, {
      maxTokens: limit,
      offersTools: body.messages ? body.tools !== undefined : this.#getText(body).includes('</tools>'),
      // Some samples are equal.
      salt: random() < 0.2 ? 0 : random(),
    })
    const { tokens: drawn } = sampled
    const finishReason = responseTokens.at(-1)!.id === vocabulary.endOfTurn ? 'stop' : 'length'
    const reports = {
      start: this.#weightReport === 'spans' || (this.#weightReport !== 'route' && body.stream === true),
      end: this.#weightReport !== 'route',
    }
    const generation: Generation = {
      ...{ requestKey, prompt, tokens: [], weights: [], versions: this.#versions, reports },
      length: drawn.length,
      responseTokens,
    }
    this.generations.push(generation)
    const cut = this.#drawCut(drawn, body.stream === true)
    const pauses = this.#pauses
    const isAborted = (at: number) => this.#pauses > pauses || (cut?.how === 'abort' && cut.at === at)
    // 0: the engine does not report the last id of the prompt; 1 or 2: an id of the completion.
    const missingId = fault === 'missing_ids' ? Math.floor(random() * 3) : undefined
    const wire = createWireFormat(body, {
      prompt: missingId === 0 ? prompt.slice(0, -1) : prompt,
      vocabulary,
      sampled,
      reportsValidIds: fault !== 'bad_ids',
    })
    await this.#wait(1 + 30 * random())
    if (fault === 'error') return json(response, { error: { message: 'out of memory' } }, 500)
    if (fault === 'stall') await this.#wait(20_000 + 40_000 * random())
    const getUsage = () => {
      const { length: sampled } = generation.tokens
      const counts = { prompt_tokens: prompt.length, completion_tokens: sampled }
      return { ...counts, total_tokens: prompt.length + sampled }
    }
    const faultAt = Math.floor(random() * drawn.length)
    const breaks = fault === 'reset' || fault === 'truncate'
    const createRoot = () => {
      const weights = { weight_version: this.weights }
      const fields =
        this.#weightReport === 'metadata' ? { metadata: weights } : this.#weightReport !== 'route' && weights
      return { id: 'cmpl-sim', created: 1, model: 'sim', ...fields }
    }
    const toReported = (at: number, token: Token) =>
      missingId && at === faultAt ? { ...token, lacksId: true } : token
    const step = (at: number, token: Token) => {
      if (fault === 'new_weights' && at === faultAt) this.replaceWeights(`${this.weights}'`)
      generation.tokens.push(token)
      generation.weights.push(this.weights)
    }
    if (!body.stream) {
      let reason = finishReason
      for (const [at, token] of drawn.entries()) {
        if (at < TIMED_TOKENS) await this.#wait(5 * random())
        if (isAborted(at)) {
          this.#countCut(requestKey, 'abort', at)
          reason = 'abort'
          break
        }
        step(at, token)
      }
      if (breaks) return void response.destroy()
      const reportsSpans = this.#weightReport === 'spans'
      const spans = reportsSpans ? { weight_versions: toWeightSpans(generation.weights) } : undefined
      const completion = wire.complete(
        generation.tokens.map((token, at) => toReported(at, token)),
        reason,
        spans,
      )
      return json(response, {
        ...createRoot(),
        ...(reportsSpans && { weight_version: undefined }),
        ...completion,
        usage: getUsage(),
      })
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    const send = (fields: object) =>
      response.write(`data: ${JSON.stringify({ ...createRoot(), ...fields })}\n\n`)
    for (const [at, token] of drawn.entries()) {
      if (at < TIMED_TOKENS) await this.#wait(random() < 0.5 ? 0 : 8 * random())
      if (response.destroyed) return
      if (at === faultAt && fault === 'reset') return void response.destroy()
      if (at === faultAt && fault === 'truncate')
        return void response.end(random() < 0.5 ? 'data: [DONE]\n\n' : undefined)
      const aborts = isAborted(at)
      if (!aborts) step(at, token)
      if (at === 0) send(wire.start())
      if (aborts) {
        this.#countCut(requestKey, 'abort', at)
        send(wire.end('abort'))
        break
      }
      const hasRoom = send(wire.chunk([toReported(at, token)]))
      if (cut?.how === 'error_event' && cut.at === at + 1) {
        this.#countCut(requestKey, 'error_event', at + 1)
        send({
          error: { message: 'EngineCore encountered an issue.', type: 'InternalServerError', code: 500 },
        })
        return void response.end('data: [DONE]\n\n')
      }
      // The end is sent together with the last token, so that the weights are still those of the token.
      if (at === drawn.length - 1) send(wire.end(finishReason))
      this.onToken(at, response.socket as unknown as SimSocket)
      if (!hasRoom) await Promise.race([once(response, 'drain'), once(response, 'close')])
    }
    response.write(`data: ${JSON.stringify({ choices: [], usage: getUsage() })}\n\n`)
    response.end('data: [DONE]\n\n')
  }

  #wait(ms: number): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve, ms * (ms < 100 ? this.#slowness : 1)))
  }
}

/** A token as the engine reports it, possibly without its id. */
type ReportedToken = Token & { lacksId?: boolean }

interface WireFormat {
  complete(tokens: readonly ReportedToken[], finishReason: string, spans?: object): object
  start(): object
  chunk(tokens: readonly ReportedToken[]): object
  end(finishReason: string): object
}

/**
 * Creates the wire format of a request. vLLM has the prompt's ids at the root in chat, and on the choice in completions.
 * Logprobs differ, too.
 */
function createWireFormat(
  { messages }: GenerationBody,
  {
    prompt,
    vocabulary,
    reportsValidIds,
    sampled,
  }: { prompt: number[]; vocabulary: Vocabulary; reportsValidIds: boolean; sampled: Sample },
): WireFormat {
  const getText = (tokens: readonly Token[]) => tokens.map(({ id }) => vocabulary.getText(id)).join('')
  const withIds = (tokens: readonly ReportedToken[]) => tokens.filter(({ lacksId }) => !lacksId)
  const getIds = (tokens: readonly Token[]) =>
    tokens.map(({ id }) => (reportsValidIds ? id : id % 3 === 0 ? -id : id + 0.5))
  const one = (choice: object) => [{ index: 0, ...choice }]
  const promptField = { prompt_token_ids: prompt }
  if (messages) {
    const { content, toolCalls } = sampled
    let left = content
    // Tool calls are not part of the content.
    const takeContent = (tokens: readonly Token[]) => {
      const text = getText(tokens)
      if (!left.startsWith(text)) return ''
      left = left.slice(text.length)
      return text
    }
    const getFields = (tokens: readonly ReportedToken[]) => ({
      token_ids: getIds(withIds(tokens)),
      logprobs: {
        content: withIds(tokens).map(({ id, logprob }) => ({
          token: vocabulary.getText(id),
          logprob,
          bytes: null,
          top_logprobs: [],
        })),
      },
    })
    const callsTools = toolCalls.length > 0
    return {
      complete: (tokens, reason, spans) => {
        const message = { role: 'assistant', content, ...(callsTools && { tool_calls: toolCalls }) }
        return {
          ...promptField,
          choices: one({
            message,
            ...getFields(tokens),
            ...spans,
            finish_reason: callsTools ? 'tool_calls' : reason,
          }),
        }
      },
      start: () => ({ ...promptField, choices: one({ delta: { role: 'assistant', content: '' } }) }),
      chunk: (tokens) => ({
        choices: one({ delta: { content: takeContent(tokens) }, ...getFields(tokens) }),
      }),
      end: (reason) => ({
        choices: one({
          delta: callsTools
            ? { tool_calls: toolCalls.map((toolCall, index) => ({ index, ...toolCall })) }
            : {},
          finish_reason: callsTools ? 'tool_calls' : reason,
        }),
      }),
    }
  }
  const getFields = (tokens: readonly ReportedToken[]) => ({
    text: getText(tokens),
    token_ids: getIds(withIds(tokens)),
    logprobs: {
      tokens: withIds(tokens).map(({ id }) => vocabulary.getText(id)),
      token_logprobs: withIds(tokens).map(({ logprob }) => logprob),
      top_logprobs: null,
      text_offset: [],
    },
  })
  return {
    complete: (tokens, reason, spans) => ({
      choices: one({ ...getFields(tokens), ...promptField, ...spans, finish_reason: reason }),
    }),
    start: () => ({ choices: one({ text: '', token_ids: [], ...promptField }) }),
    chunk: (tokens) => ({ choices: one(getFields(tokens)) }),
    end: (reason) => ({ choices: one({ text: '', finish_reason: reason }) }),
  }
}

/** Returns spans in the shape of vLLM's `WeightVersionSpan`. */
function toWeightSpans(weights: readonly string[]): { version: string; start: number; end: number }[] {
  const starts = weights.flatMap((version, at) => (at === 0 || version !== weights[at - 1] ? [at] : []))
  return starts.map((start, at) => ({
    version: weights[start]!,
    start,
    end: starts[at + 1] ?? weights.length,
  }))
}

function json(response: ServerResponse, body: object, status = 200): void {
  response.writeHead(status, { 'content-type': 'application/json' })
  response.end(JSON.stringify(body))
}
