/** An inference engine with vLLM's wire format on a server of `node:http`. It samples what the oracle says. */

import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { Machine } from '../world/machine.ts'
import type { World } from '../world/world.ts'
import { type ChatMessage, END_OF_TURN, promptIds, sample, textOf } from './oracle.ts'

interface ChatRequest {
  messages: ChatMessage[]
  stream?: boolean
  max_tokens?: number
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
  readonly #world: World
  #machine: Machine
  #server: Server
  #stop: () => void
  #mischief: { what: Mischief; calls: number } | undefined

  constructor(world: World, name: string) {
    this.#world = world
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
    const body = JSON.parse(Buffer.concat(parts).toString()) as ChatRequest
    const machine = this.#machine
    this.running += 1
    response.once('close', () => {
      if (!machine.isDead) this.running -= 1
    })
    const call = body.messages.findLast(({ role }) => role === 'user')?.content ?? ''
    this.begun.set(call, (this.begun.get(call) ?? 0) + 1)
    this.#world.log(this.name, `begins ${call}`)
    await this.#generate(body, response, this.#nextMischief())
  }

  #nextMischief(): Mischief | undefined {
    if (this.#mischief === undefined || this.#mischief.calls <= 0) return undefined
    this.#mischief.calls -= 1
    return this.#mischief.what
  }

  async #generate(
    body: ChatRequest,
    response: ServerResponse,
    mischief: Mischief | undefined,
  ): Promise<void> {
    const { engine: random } = this.#world.random
    const prompt = promptIds(body.messages)
    const { weights } = this
    const { ids, logprobs } = sample(prompt, weights, body.max_tokens)
    const root = { id: 'chatcmpl-sim', created: 1, model: 'sim', weight_version: weights }
    const finishReason = ids.at(-1) === END_OF_TURN ? 'stop' : 'length'
    const shownIds = mischief === 'bad_ids' ? ids.map((id) => (id % 3 === 0 ? -id : id + 0.5)) : ids
    await this.#wait(1 + 30 * random())
    if (mischief === 'error') return json(response, { error: { message: 'out of memory' } }, 500)
    if (mischief === 'stall') await this.#wait(20_000 + 40_000 * random())
    const entries = logprobs.map((logprob, at) => ({
      token: textOf(ids[at]!),
      logprob,
      bytes: null,
      top_logprobs: [],
    }))
    const usage = {
      prompt_tokens: prompt.length,
      completion_tokens: ids.length,
      total_tokens: prompt.length + ids.length,
    }
    if (!body.stream) {
      await this.#wait(ids.length * 5 * random())
      if (mischief === 'reset' || mischief === 'truncate') return void response.destroy()
      return json(response, {
        ...root,
        prompt_token_ids: prompt,
        choices: [
          {
            index: 0,
            message: { role: 'assistant', content: ids.map(textOf).join('') },
            logprobs: { content: entries },
            token_ids: shownIds,
            finish_reason: finishReason,
          },
        ],
        usage,
      })
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    const send = (said: object) => response.write(`data: ${JSON.stringify(said)}\n\n`)
    send({
      ...root,
      prompt_token_ids: prompt,
      choices: [{ index: 0, delta: { role: 'assistant', content: '' } }],
    })
    const breakAt = mischief === 'reset' || mischief === 'truncate' ? Math.floor(random() * ids.length) : -1
    for (const [at, id] of ids.entries()) {
      await this.#wait(random() < 0.5 ? 0 : 8 * random())
      if (response.destroyed) return
      if (at === breakAt && mischief === 'reset') return void response.destroy()
      if (at === breakAt) return void response.end()
      const kept = send({
        ...root,
        choices: [
          {
            index: 0,
            delta: { content: textOf(id) },
            logprobs: { content: [entries[at]] },
            token_ids: [shownIds[at]],
          },
        ],
      })
      if (!kept) await Promise.race([once(response, 'drain'), once(response, 'close')])
    }
    send({ ...root, choices: [{ index: 0, delta: {}, finish_reason: finishReason }] })
    send({ ...root, choices: [], usage })
    response.end('data: [DONE]\n\n')
  }

  #wait(ms: number): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve, ms * (ms < 100 ? this.#slowness : 1)))
  }
}

function json(response: ServerResponse, body: object, status = 200): void {
  response.writeHead(status, { 'content-type': 'application/json' })
  response.end(JSON.stringify(body))
}
