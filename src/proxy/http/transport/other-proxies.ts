/** What the other proxies say that share the record, of what is in no record: their open turns, and what happens there. */
import { createInterface } from 'node:readline'
import { json } from 'node:stream/consumers'
import type { FastifyRequest } from 'fastify'
import type { SharedRecord, SharingProxy } from '../../store/port/shared-record.ts'
import type { NdjsonReply } from './ndjson-reply.ts'
import { hopsOf, type PassOn } from './pass-on.ts'

/** How often it is looked whether there are others, and how long one may take for a short answer. */
const LOOK_MS = 1_000
const PATIENCE_MS = 2_000

export class OtherProxies {
  readonly #shared: SharedRecord
  readonly #passOn: PassOn

  constructor(shared: SharedRecord, passOn: PassOn) {
    this.#shared = shared
    this.#passOn = passOn
  }

  /** Sends the lines of the others, too, for as long as the client stays. A question of one of them is answered for one. */
  follow(request: FastifyRequest, lines: NdjsonReply): void {
    if (hopsOf(request) > 0) return
    const left = new AbortController()
    lines.until(() => left.abort())
    const followed = new Set<number>()
    const look = () => {
      for (const other of this.#others) {
        if (followed.has(other.id)) continue
        followed.add(other.id)
        void this.#copy(request, other, lines, left.signal).finally(() => followed.delete(other.id))
      }
    }
    look()
    lines.every(LOOK_MS, look)
  }

  /** @returns their answers in JSON; who does not answer, or refuses, is left out */
  async ask<T>(request: FastifyRequest): Promise<T[]> {
    if (hopsOf(request) > 0) return []
    const answers = await Promise.all(
      this.#others.map((other) => this.#ask<T>(request, other).catch(() => undefined)),
    )
    return answers.filter((answer) => answer !== undefined)
  }

  get #others(): (SharingProxy & { url: string })[] {
    const { self, proxies } = this.#shared
    return proxies.flatMap((proxy) =>
      proxy.id === self?.id || proxy.url === undefined ? [] : [{ ...proxy, url: proxy.url }],
    )
  }

  async #ask<T>(request: FastifyRequest, { url }: { url: string }): Promise<T | undefined> {
    const answer = await this.#passOn.ask(request, url, AbortSignal.timeout(PATIENCE_MS))
    const body = await json(answer)
    return answer.statusCode === 200 ? (body as T) : undefined
  }

  /** Never rejects. */
  async #copy(
    request: FastifyRequest,
    { id, url }: { id: number; url: string },
    lines: NdjsonReply,
    left: AbortSignal,
  ): Promise<void> {
    try {
      const answer = await this.#passOn.ask(request, url, AbortSignal.any([left, this.#shared.goneOf(id)]))
      if (answer.statusCode !== 200) return void answer.destroy()
      for await (const line of createInterface(answer))
        if (!line.includes('"type":"ping"')) lines.sendLine(line)
    } catch {
      // It has gone, or the client has; the next look tells.
    }
  }
}
