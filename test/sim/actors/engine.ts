/** An inference engine with vLLM's wire format on a server of `node:http`. It samples what the oracle says. */

import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { Machine } from '../world/machine.ts'
import type { SimSocket } from '../world/network.ts'
import type { World } from '../world/world.ts'
import {
  type ChatMessage,
  callIn,
  contentOf,
  promptIds,
  type Sampled,
  sample,
  type Vocabulary,
} from './oracle.ts'

interface GenerationBody {
  messages?: ChatMessage[]
  /** On the route of completions: a text, or its ids. */
  prompt?: string | number[]
  stream?: boolean
  max_tokens?: number
  /** The newer name, which only the route of chat knows. */
  max_completion_tokens?: number
}

/** What vLLM takes where a completion names no limit. */
const COMPLETION_TOKENS = 16

/** What engines and the checker share. */
export interface Model {
  vocabulary: Vocabulary
  decode(ids: readonly number[]): string
}

/** What goes wrong with the next calls. */
export type Mischief = 'stall' | 'reset' | 'bad_ids' | 'error' | 'truncate'

export class SimEngine {
  readonly name: string
  readonly address: { host: string; port: number }
  weights = '1'
  /** How slow it is: a slow one has calls under way whenever something happens. */
  readonly #slowness: number
  /** Generations that it works on. */
  running = 0
  /** Begun, by what the call says of itself. */
  readonly begun = new Map<string, number>()
  /** Is told of each token that is sent in a stream: its place in the answer, and over which socket it goes. */
  onToken: (place: number, socket: SimSocket) => void = () => {}
  readonly #world: World
  readonly #model: Model
  #machine: Machine
  #server: Server
  #stop: () => void
  #mischief: { what: Mischief; calls: number } | undefined

  constructor(world: World, name: string, model: Model) {
    this.#world = world
    this.#model = model
    this.name = name
    this.#slowness = world.random.engine() < 0.4 ? 40 : 1
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
    this.running = 0
    this.#machine.kill()
  }

  /** As a new process, with the weights that the old one had last. */
  restart(): void {
    if (!this.#machine.isDead) return
    this.#machine = new Machine(this.name)
    this.#server = this.#machine.run(() => this.#serve())
    this.#stop = this.#machine.run(() => this.#world.network.listen(this.address, this.#server))
  }

  misbehave(what: Mischief, calls: number): void {
    this.#mischief = { what, calls }
  }

  #serve(): Server {
    const server = createServer((request, response) => void this.#answer(request, response))
    // Node looks at these by the real clock.
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
    const machine = this.#machine
    this.running += 1
    response.once('close', () => {
      if (!machine.isDead) this.running -= 1
    })
    const call = callIn(this.#textOf(body))
    this.begun.set(call, (this.begun.get(call) ?? 0) + 1)
    this.#world.log(this.name, `begins ${call}`)
    await this.#generate(body, response, this.#nextMischief())
  }

  #nextMischief(): Mischief | undefined {
    if (this.#mischief === undefined || this.#mischief.calls <= 0) return undefined
    this.#mischief.calls -= 1
    return this.#mischief.what
  }

  #textOf({ messages, prompt }: GenerationBody): string {
    if (messages) return messages.map(contentOf).join('\n')
    return typeof prompt === 'string' ? prompt : this.#model.decode(prompt!)
  }

  #promptOf({ messages, prompt }: GenerationBody): number[] {
    if (messages) return promptIds(messages)
    return typeof prompt === 'string' ? this.#model.vocabulary.encode(prompt) : prompt!
  }

  async #generate(
    body: GenerationBody,
    response: ServerResponse,
    mischief: Mischief | undefined,
  ): Promise<void> {
    const { engine: random } = this.#world.random
    const { vocabulary } = this.#model
    const prompt = this.#promptOf(body)
    const { weights } = this
    const limit = body.messages
      ? (body.max_completion_tokens ?? body.max_tokens)
      : (body.max_tokens ?? COMPLETION_TOKENS)
    const sampled = sample(vocabulary, prompt, weights, limit)
    const { ids } = sampled
    const root = { id: 'cmpl-sim', created: 1, model: 'sim', weight_version: weights }
    const wire = wireOf(body, { prompt, vocabulary, isHonest: mischief !== 'bad_ids' })
    const finishReason = ids.at(-1) === vocabulary.endOfTurn ? 'stop' : 'length'
    await this.#wait(1 + 30 * random())
    if (mischief === 'error') return json(response, { error: { message: 'out of memory' } }, 500)
    if (mischief === 'stall') await this.#wait(20_000 + 40_000 * random())
    const usage = {
      prompt_tokens: prompt.length,
      completion_tokens: ids.length,
      total_tokens: prompt.length + ids.length,
    }
    if (!body.stream) {
      await this.#wait(ids.length * 5 * random())
      if (mischief === 'reset' || mischief === 'truncate') return void response.destroy()
      return json(response, { ...root, ...wire.whole(sampled, finishReason), usage })
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    const send = (said: object) => response.write(`data: ${JSON.stringify({ ...root, ...said })}\n\n`)
    send(wire.begin())
    const breakAt = mischief === 'reset' || mischief === 'truncate' ? Math.floor(random() * ids.length) : -1
    for (const [at, id] of ids.entries()) {
      await this.#wait(random() < 0.5 ? 0 : 8 * random())
      if (response.destroyed) return
      if (at === breakAt && mischief === 'reset') return void response.destroy()
      if (at === breakAt) return void response.end()
      const kept = send(wire.piece({ ids: [id], logprobs: [sampled.logprobs[at]!] }))
      this.onToken(at, response.socket as unknown as SimSocket)
      if (!kept) await Promise.race([once(response, 'drain'), once(response, 'close')])
    }
    send(wire.end(finishReason))
    send({ choices: [], usage })
    response.end('data: [DONE]\n\n')
  }

  #wait(ms: number): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve, ms * (ms < 100 ? this.#slowness : 1)))
  }
}

interface Wire {
  whole(sampled: Sampled, finishReason: string): object
  begin(): object
  piece(sampled: Sampled): object
  end(finishReason: string): object
}

/** vLLM has the prompt's ids at the root in chat, and on the choice in completions; logprobs differ too. */
function wireOf(
  { messages }: GenerationBody,
  { prompt, vocabulary, isHonest }: { prompt: number[]; vocabulary: Vocabulary; isHonest: boolean },
): Wire {
  const textOf = (ids: readonly number[]) => ids.map(vocabulary.textOf).join('')
  const shown = (ids: number[]) => (isHonest ? ids : ids.map((id) => (id % 3 === 0 ? -id : id + 0.5)))
  const one = (choice: object) => [{ index: 0, ...choice }]
  const promptField = { prompt_token_ids: prompt }
  if (messages) {
    const told = ({ ids, logprobs }: Sampled) => ({
      token_ids: shown(ids),
      logprobs: {
        content: logprobs.map((logprob, at) => ({
          token: vocabulary.textOf(ids[at]!),
          logprob,
          bytes: null,
          top_logprobs: [],
        })),
      },
    })
    return {
      whole: (sampled, reason) => {
        const message = { role: 'assistant', content: textOf(sampled.ids) }
        return { ...promptField, choices: one({ message, ...told(sampled), finish_reason: reason }) }
      },
      begin: () => ({ ...promptField, choices: one({ delta: { role: 'assistant', content: '' } }) }),
      piece: (sampled) => ({ choices: one({ delta: { content: textOf(sampled.ids) }, ...told(sampled) }) }),
      end: (reason) => ({ choices: one({ delta: {}, finish_reason: reason }) }),
    }
  }
  const told = ({ ids, logprobs }: Sampled) => ({
    text: textOf(ids),
    token_ids: shown(ids),
    logprobs: {
      tokens: ids.map(vocabulary.textOf),
      token_logprobs: logprobs,
      top_logprobs: null,
      text_offset: [],
    },
  })
  return {
    whole: (sampled, reason) => ({
      choices: one({ ...told(sampled), ...promptField, finish_reason: reason }),
    }),
    begin: () => ({ choices: one({ text: '', token_ids: [], ...promptField }) }),
    piece: (sampled) => ({ choices: one(told(sampled)) }),
    end: (reason) => ({ choices: one({ text: '', finish_reason: reason }) }),
  }
}

function json(response: ServerResponse, body: object, status = 200): void {
  response.writeHead(status, { 'content-type': 'application/json' })
  response.end(JSON.stringify(body))
}
