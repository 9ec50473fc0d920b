/** What an engine's core received and sampled, as logged by the plugin in its process. */
import { existsSync, openSync, readSync } from 'node:fs'

/** One line of the log; `vllm/plugin/core_log.py` describes the fields. */
type Line =
  | { asked: string; prompt: number[]; params: Record<string, unknown>; lora: string | null }
  | {
      sampled: string
      ids: number[]
      logprobs: number[] | null
      heard: boolean
      weights: string | null
      finish: string | null
      stop: string | number | null
      at: number
    }

/**
 * One request to the core. Ids sampled after a stop string or an abort are left out, because no client received them.
 */
export interface CoreCall {
  prompt: readonly number[]
  params: Record<string, unknown>
  lora: string | null
  ids: number[]
  logprobs: number[]
  /** Weight version for each token. */
  weights: (string | null)[]
  finish: string | null
  stop: string | number | null
  /** Time of the core's latest output for the request, delivered or not, in ms since the epoch. */
  lastAtMs: number
}

const CHUNK_BYTES = 1 << 20

/** A log that grows while it is read. */
export class CoreLog {
  readonly #path: string
  readonly #calls = new Map<string, CoreCall>()
  /** Requests by their prompt ids, in order: thousands of turns are looked up among thousands of requests. */
  readonly #prompted = new Map<string, CoreCall[]>()
  #offset = 0
  #rest = Buffer.alloc(0)
  #file: number | undefined

  constructor(path: string) {
    this.#path = path
  }

  /** Returns all requests logged so far, in order. Objects returned earlier are updated in place. */
  calls(): CoreCall[] {
    this.#read()
    return [...this.#calls.values()]
  }

  /**
   * @param fits chooses among several requests with the same short prompt and completion; the last match wins
   * @returns the last request with this prompt whose completion begins with these ids
   */
  find(
    prompt: readonly number[],
    ids: readonly number[],
    fits: (call: CoreCall) => boolean = () => true,
  ): CoreCall | undefined {
    this.#read()
    const sampled = ids.join()
    const alike = this.#prompted
      .get(prompt.join())
      ?.filter((call) => call.ids.slice(0, ids.length).join() === sampled)
    return alike?.findLast(fits) ?? alike?.at(-1)
  }

  #read(): void {
    if (this.#file === undefined) {
      if (!existsSync(this.#path)) return
      this.#file = openSync(this.#path, 'r')
    }
    const chunk = Buffer.alloc(CHUNK_BYTES)
    for (;;) {
      const count = readSync(this.#file, chunk, 0, CHUNK_BYTES, this.#offset)
      if (count === 0) return
      this.#offset += count
      const bytes = Buffer.concat([this.#rest, chunk.subarray(0, count)])
      const end = bytes.lastIndexOf('\n') + 1
      this.#rest = Buffer.from(bytes.subarray(end))
      for (const line of bytes.toString('utf8', 0, end).split('\n'))
        if (line !== '') this.#take(JSON.parse(line))
    }
  }

  #take(line: Line): void {
    if ('asked' in line) {
      const { asked, prompt, params, lora } = line
      const call = {
        prompt,
        params,
        lora,
        ids: [],
        logprobs: [],
        weights: [],
        finish: null,
        stop: null,
        lastAtMs: 0,
      }
      this.#calls.set(asked, call)
      const prompted = prompt.join()
      const alike = this.#prompted.get(prompted)
      if (alike) alike.push(call)
      else this.#prompted.set(prompted, [call])
      return
    }
    const call = this.#calls.get(line.sampled)
    if (call === undefined) return
    call.lastAtMs = line.at * 1_000
    if (!line.heard) return
    call.ids.push(...line.ids)
    call.logprobs.push(...(line.logprobs ?? []))
    call.weights.push(...line.ids.map(() => line.weights))
    if (line.finish !== null) Object.assign(call, { finish: line.finish, stop: line.stop })
  }
}
