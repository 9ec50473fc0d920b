import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../src/protocol/token-ids/prompt-ids.ts'
import type { EventStream } from './event-stream.ts'
import { ScriptedBackend } from './scripted-backend.ts'

export interface CountingOptions {
  /** The number of chunks of a response, unless the request's `max_tokens` overrides it. */
  chunks?: number
  /** The time between two chunks. */
  chunkMs?: number
  /** The time before the first event. */
  startMs?: number
  /** Delays the response until this resolves. */
  gate?: Promise<unknown>
}

/** Returns the text of a complete response: a missing, duplicated or misplaced chunk changes it. */
export function countedText(chunks: number): string {
  return Array.from({ length: chunks }, (_, i) => `${i} `).join('')
}

/** A backend that counts, one number per chunk, and tracks how many of its generations run. */
export class CountingBackend extends ScriptedBackend {
  running = 0
  /** The largest number of concurrent generations. */
  maxRunning = 0
  healthy = true
  weightVersion = '7'
  readonly #counting: Required<CountingOptions>

  constructor(counting: CountingOptions = {}) {
    super((request, signal) => this.#count(request, signal))
    this.#counting = { chunks: 20, chunkMs: 0, startMs: 0, gate: Promise.resolve(), ...counting }
  }

  override getStatus() {
    const member = {
      name: 'counting',
      kind: 'embedded',
      healthy: this.healthy,
      models: ['counting'],
      takesTokenIds: true,
      capacity: 8,
    }
    const { running: inFlight, weightVersion } = this
    return { members: [{ ...member, inFlight, weightVersion }], queued: 0 }
  }

  async *#count({ body }: GenerationRequest, signal: AbortSignal): EventStream {
    const chunks = body.max_tokens ?? this.#counting.chunks
    this.running += 1
    this.maxRunning = Math.max(this.maxRunning, this.running)
    try {
      await sleep(this.#counting.startMs, undefined, { signal })
      await Promise.race([this.#counting.gate, once(signal, 'abort')])
      yield [{ type: 'start', engine: 'counting', model: 'counting', promptTokenIds: PromptIds.of(1, 2) }]
      for (let i = 0; i < chunks; i += 1) {
        if (this.#counting.chunkMs > 0) await sleep(this.#counting.chunkMs, undefined, { signal })
        signal.throwIfAborted()
        yield [{ type: 'delta', content: `${i} `, tokenIds: [i], logprobs: [-i / 8] }]
      }
      yield [{ type: 'end', finishReason: 'stop', weightVersion: '8' }]
    } finally {
      this.running -= 1
    }
  }
}
