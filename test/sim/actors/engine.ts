/** An inference engine with vLLM's wire format on a server of `node:http`. Its samples come from the oracle. */

import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { Machine } from '../world/machine.ts'
import type { SimSocket } from '../world/network.ts'
import type { World } from '../world/world.ts'
import {
  type BegunResponses,
  type ChatMessage,
  callIn,
  contentOf,
  promptIds,
  type Sampled,
  type Served,
  sample,
  type Token,
  type Vocabulary,
  type Wanted,
} from './oracle.ts'

interface GenerationBody {
  messages?: ChatMessage[]
  tools?: object[]
  /** The prompt on the completions route: a text, or its ids. */
  prompt?: string | number[]
  stream?: boolean
  max_tokens?: number
  /** The newer name, which only the chat route knows. */
  max_completion_tokens?: number
}

/** vLLM's default limit of a completion. */
const COMPLETION_TOKENS = 16

/** The number of tokens that are sent over time; the rest are sent at once, because clients time out after minutes. */
const TIMED = 100

/** The model that engines and the checker share. */
export interface Model {
  vocabulary: Vocabulary
  decode(ids: readonly number[]): string
  /** Absent: responses are not continued, because engines render their prompts. */
  begun?: BegunResponses
}

/** Faults of the next requests. */
export type Mischief = 'stall' | 'reset' | 'bad_ids' | 'lost_ids' | 'new_weights' | 'error' | 'truncate'

/** Cuts of the next responses: the finish reason `abort`, or an error event. */
export type Cut = 'abort' | 'error_event'

/**
 * The ways to report a weight version. `root`, `metadata`: in everything that it sends, so a complete response has
 * the version of its end; `spans`: a complete response has that of each token; `aside`: only in `/weight_info`.
 */
const TELLS = ['root', 'metadata', 'spans', 'aside'] as const

export class SimEngine {
  readonly name: string
  readonly address: { host: string; port: number }
  /** Its weight versions, in order. */
  readonly #versions = ['1']
  /** Its slowness: a slow engine has requests in flight whenever something happens. */
  readonly #slowness: number
  /** The number of generations in progress. */
  running = 0
  /** The number of generations that began, by request. */
  readonly begun = new Map<string, number>()
  /** All of its generations. */
  readonly served: Served[] = []
  readonly #tells: (typeof TELLS)[number]
  /** Called for each streamed token, with its index in the completion and the socket. */
  onToken: (place: number, socket: SimSocket) => void = () => {}
  readonly #world: World
  readonly #model: Model
  #machine: Machine
  #server: Server
  #stop: () => void
  #mischief: { what: Mischief; calls: number } | undefined
  #cut: { how: Cut; calls: number } | undefined
  /** The number of responses that were cut, by request. */
  readonly cuts = new Map<string, number>()
  /** Set while it is paused; ends with the pause. */
  #paused: PromiseWithResolvers<void> | undefined
  /** Whether it has the route that reports a pause. */
  readonly #reportsPause: boolean
  /** The number of pauses, each of which aborts the requests that run. */
  #pauses = 0

  constructor(world: World, name: string, model: Model, { reportsPause = false } = {}) {
    this.#reportsPause = reportsPause
    this.#world = world
    this.#model = model
    this.name = name
    this.#slowness = world.random.engine() < 0.4 ? 40 : 1
    this.#tells = TELLS[Math.floor(world.random.engine() * TELLS.length)]!
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

  /** Starts a new process, with the last weights of the old one. */
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

  misbehave(what: Mischief, calls: number): void {
    this.#mischief = { what, calls }
  }

  /** Cuts the next responses at drawn tokens. */
  cutNext(how: Cut, calls: number): void {
    this.#cut = { how, calls }
  }

  /** Aborts all requests, and holds new ones until {@link resume}. */
  pause(): void {
    this.#paused ??= Promise.withResolvers()
    this.#pauses += 1
  }

  resume(): void {
    this.#paused?.resolve()
    this.#paused = undefined
  }

  #serve(): Server {
    const server = createServer((request, response) => void this.#answer(request, response))
    // Node checks these timeouts by the real clock.
    server.headersTimeout = 0
    server.requestTimeout = 0
    return server
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
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
    // It does not tokenize chats.
    if (url === '/tokenize' && body.messages) return json(response, { detail: 'Not Found' }, 404)
    if (url === '/tokenize') return json(response, { tokens: this.#promptOf(body) })
    const machine = this.#machine
    this.running += 1
    response.once('close', () => {
      if (!machine.isDead) this.running -= 1
    })
    const call = callIn(this.#textOf(body))
    this.begun.set(call, (this.begun.get(call) ?? 0) + 1)
    this.#world.log(this.name, `begins ${call}`)
    await this.#paused?.promise
    await this.#generate(call, body, response)
  }

  #nextMischief(): Mischief | undefined {
    if (this.#mischief === undefined || this.#mischief.calls <= 0) return undefined
    this.#mischief.calls -= 1
    return this.#mischief.what
  }

  #drawCut({ length }: readonly Token[], stream: boolean): { how: Cut; at: number } | undefined {
    if (this.#cut === undefined || this.#cut.calls <= 0) return undefined
    this.#cut.calls -= 1
    // A complete response has no events: it can only be aborted.
    const how = stream ? this.#cut.how : 'abort'
    const at = Math.floor(length * this.#world.random.cuts())
    // An error before the first token is no cut. After the last one, it is a cut of a response whose tokens are complete.
    return { how, at: how === 'error_event' ? at + 1 : at }
  }

  #noteCut(call: string, how: Cut, at: number): void {
    this.cuts.set(call, (this.cuts.get(call) ?? 0) + 1)
    this.#world.log(this.name, `cuts ${call} at token ${at}: ${how}`)
  }

  /**
   * Samples a response, or the rest of the one that the prompt continues.
   * @returns what this request samples, and the tokens of the whole response
   */
  #sample(prompt: readonly number[], wanted: Wanted): { sampled: Sampled; whole: readonly Token[] } {
    const { vocabulary, begun } = this.#model
    const earlier = begun?.find(prompt)
    if (earlier === undefined) {
      begun?.add(prompt, wanted, sample(vocabulary, prompt, { ...wanted, maxTokens: undefined }))
      const sampled = sample(vocabulary, prompt, wanted)
      return { sampled, whole: sampled.tokens }
    }
    const offset = prompt.length - earlier.prompt.length
    const { maxTokens = Number.POSITIVE_INFINITY } = wanted
    const sampled = sample(vocabulary, earlier.prompt, { ...earlier.wanted, maxTokens: offset + maxTokens })
    const rest = sampled.tokens.slice(offset)
    if (rest.length === 0)
      this.#world.violated('an engine received a request that continues a complete response')
    return { sampled: { ...sampled, tokens: rest }, whole: sampled.tokens }
  }

  #textOf({ messages, prompt }: GenerationBody): string {
    if (messages) return messages.map(contentOf).join('\n')
    return typeof prompt === 'string' ? prompt : this.#model.decode(prompt!)
  }

  #promptOf({ messages, prompt }: GenerationBody): number[] {
    if (messages) return promptIds(messages)
    return typeof prompt === 'string' ? this.#model.vocabulary.encode(prompt) : prompt!
  }

  async #generate(call: string, body: GenerationBody, response: ServerResponse): Promise<void> {
    const { engine: random } = this.#world.random
    const { vocabulary } = this.#model
    const mischief = this.#nextMischief()
    const prompt = this.#promptOf(body)
    const limit = body.messages
      ? (body.max_completion_tokens ?? body.max_tokens)
      : (body.max_tokens ?? COMPLETION_TOKENS)
    const { sampled, whole } = this.#sample(prompt, {
      maxTokens: limit,
      calls: body.messages ? body.tools !== undefined : this.#textOf(body).includes('</tools>'),
      // Some samples are equal.
      salt: random() < 0.2 ? 0 : random(),
    })
    const { tokens: drawn } = sampled
    const finishReason = whole.at(-1)!.id === vocabulary.endOfTurn ? 'stop' : 'length'
    const tells = {
      start: this.#tells === 'spans' || (this.#tells !== 'aside' && body.stream === true),
      end: this.#tells !== 'aside',
    }
    const served: Served = {
      ...{ call, prompt, tokens: [], weights: [], versions: this.#versions, tells },
      length: drawn.length,
      whole,
    }
    this.served.push(served)
    const cut = this.#drawCut(drawn, body.stream === true)
    const pauses = this.#pauses
    const isAborted = (at: number) => this.#pauses > pauses || (cut?.how === 'abort' && cut.at === at)
    const losesOf = mischief === 'lost_ids' ? Math.floor(random() * 3) : undefined
    const wire = wireOf(body, {
      prompt: losesOf === 0 ? prompt.slice(0, -1) : prompt,
      vocabulary,
      sampled,
      isHonest: mischief !== 'bad_ids',
    })
    await this.#wait(1 + 30 * random())
    if (mischief === 'error') return json(response, { error: { message: 'out of memory' } }, 500)
    if (mischief === 'stall') await this.#wait(20_000 + 40_000 * random())
    const usageNow = () => {
      const { length: sampled } = served.tokens
      const counts = { prompt_tokens: prompt.length, completion_tokens: sampled }
      return { ...counts, total_tokens: prompt.length + sampled }
    }
    const strikesAt = Math.floor(random() * drawn.length)
    const breaks = mischief === 'reset' || mischief === 'truncate'
    const root = () => {
      const weights = { weight_version: this.weights }
      const fields = this.#tells === 'metadata' ? { metadata: weights } : this.#tells !== 'aside' && weights
      return { id: 'cmpl-sim', created: 1, model: 'sim', ...fields }
    }
    /** Returns a token as it is reported; one token may lack its id. */
    const entryOf = (at: number, token: Token) =>
      losesOf && at === strikesAt ? { ...token, isLost: true } : token
    const step = (at: number, token: Token) => {
      if (mischief === 'new_weights' && at === strikesAt) this.replaceWeights(`${this.weights}'`)
      served.tokens.push(token)
      served.weights.push(this.weights)
    }
    if (!body.stream) {
      let reason = finishReason
      for (const [at, token] of drawn.entries()) {
        if (at < TIMED) await this.#wait(5 * random())
        if (isAborted(at)) {
          this.#noteCut(call, 'abort', at)
          reason = 'abort'
          break
        }
        step(at, token)
      }
      if (breaks) return void response.destroy()
      const tellsSpans = this.#tells === 'spans'
      const spans = tellsSpans ? { weight_versions: spansOf(served.weights) } : undefined
      const answer = wire.whole(
        served.tokens.map((token, at) => entryOf(at, token)),
        reason,
        spans,
      )
      return json(response, {
        ...root(),
        ...(tellsSpans && { weight_version: undefined }),
        ...answer,
        usage: usageNow(),
      })
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    const send = (fields: object) => response.write(`data: ${JSON.stringify({ ...root(), ...fields })}\n\n`)
    for (const [at, token] of drawn.entries()) {
      if (at < TIMED) await this.#wait(random() < 0.5 ? 0 : 8 * random())
      if (response.destroyed) return
      if (at === strikesAt && mischief === 'reset') return void response.destroy()
      if (at === strikesAt && mischief === 'truncate')
        return void response.end(random() < 0.5 ? 'data: [DONE]\n\n' : undefined)
      const aborts = isAborted(at)
      if (!aborts) step(at, token)
      if (at === 0) send(wire.begin())
      if (aborts) {
        this.#noteCut(call, 'abort', at)
        send(wire.end('abort'))
        break
      }
      const kept = send(wire.piece([entryOf(at, token)]))
      if (cut?.how === 'error_event' && cut.at === at + 1) {
        this.#noteCut(call, 'error_event', at + 1)
        send({
          error: { message: 'EngineCore encountered an issue.', type: 'InternalServerError', code: 500 },
        })
        return void response.end('data: [DONE]\n\n')
      }
      // The last token is sent together with the end, so that the weights are still those of the token.
      if (at === drawn.length - 1) send(wire.end(finishReason))
      this.onToken(at, response.socket as unknown as SimSocket)
      if (!kept) await Promise.race([once(response, 'drain'), once(response, 'close')])
    }
    response.write(`data: ${JSON.stringify({ choices: [], usage: usageNow() })}\n\n`)
    response.end('data: [DONE]\n\n')
  }

  #wait(ms: number): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve, ms * (ms < 100 ? this.#slowness : 1)))
  }
}

/** A token as the engine reports it: only the text of a lost one. */
type ToldToken = Token & { isLost?: boolean }

interface Wire {
  whole(tokens: readonly ToldToken[], finishReason: string, spans?: object): object
  begin(): object
  piece(tokens: readonly ToldToken[]): object
  end(finishReason: string): object
}

/**
 * Creates the wire format. vLLM has the prompt's ids at the root in chat, and on the choice in completions; logprobs
 * differ too.
 */
function wireOf(
  { messages }: GenerationBody,
  {
    prompt,
    vocabulary,
    isHonest,
    sampled,
  }: { prompt: number[]; vocabulary: Vocabulary; isHonest: boolean; sampled: Sampled },
): Wire {
  const textOf = (tokens: readonly Token[]) => tokens.map(({ id }) => vocabulary.textOf(id)).join('')
  const keptOf = (tokens: readonly ToldToken[]) => tokens.filter(({ isLost }) => !isLost)
  const idsOf = (tokens: readonly Token[]) =>
    tokens.map(({ id }) => (isHonest ? id : id % 3 === 0 ? -id : id + 0.5))
  const one = (choice: object) => [{ index: 0, ...choice }]
  const promptField = { prompt_token_ids: prompt }
  if (messages) {
    const { content, calls } = sampled
    let left = content
    // Tool calls are reported as such, not as content.
    const contentIn = (tokens: readonly Token[]) => {
      const text = textOf(tokens)
      if (!left.startsWith(text)) return ''
      left = left.slice(text.length)
      return text
    }
    const fieldsOf = (tokens: readonly ToldToken[]) => ({
      token_ids: idsOf(keptOf(tokens)),
      logprobs: {
        content: keptOf(tokens).map(({ id, logprob }) => ({
          token: vocabulary.textOf(id),
          logprob,
          bytes: null,
          top_logprobs: [],
        })),
      },
    })
    const called = calls.length > 0
    return {
      whole: (tokens, reason, spans) => {
        const message = { role: 'assistant', content, ...(called && { tool_calls: calls }) }
        return {
          ...promptField,
          choices: one({
            message,
            ...fieldsOf(tokens),
            ...spans,
            finish_reason: called ? 'tool_calls' : reason,
          }),
        }
      },
      begin: () => ({ ...promptField, choices: one({ delta: { role: 'assistant', content: '' } }) }),
      piece: (tokens) => ({ choices: one({ delta: { content: contentIn(tokens) }, ...fieldsOf(tokens) }) }),
      end: (reason) => ({
        choices: one({
          delta: called ? { tool_calls: calls.map((call, index) => ({ index, ...call })) } : {},
          finish_reason: called ? 'tool_calls' : reason,
        }),
      }),
    }
  }
  const fieldsOf = (tokens: readonly ToldToken[]) => ({
    text: textOf(tokens),
    token_ids: idsOf(keptOf(tokens)),
    logprobs: {
      tokens: keptOf(tokens).map(({ id }) => vocabulary.textOf(id)),
      token_logprobs: keptOf(tokens).map(({ logprob }) => logprob),
      top_logprobs: null,
      text_offset: [],
    },
  })
  return {
    whole: (tokens, reason, spans) => ({
      choices: one({ ...fieldsOf(tokens), ...promptField, ...spans, finish_reason: reason }),
    }),
    begin: () => ({ choices: one({ text: '', token_ids: [], ...promptField }) }),
    piece: (tokens) => ({ choices: one(fieldsOf(tokens)) }),
    end: (reason) => ({ choices: one({ text: '', finish_reason: reason }) }),
  }
}

/** Returns spans as `WeightVersionSpan` of vLLM. */
function spansOf(weights: readonly string[]): { version: string; start: number; end: number }[] {
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
