/** The requests and samples of an engine's core, as logged by the plugin in its process. */
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
 * One request to the core, without ids that the core sampled after a stop string or an abort: no client received them.
 */
export interface CoreRequest {
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
  readonly #requests = new Map<string, CoreRequest>()
  /** Requests by their prompt ids, in order: a test looks up thousands of turns among thousands of requests. */
  readonly #byPrompt = new Map<string, CoreRequest[]>()
  #offset = 0
  #rest = Buffer.alloc(0)
  #file: number | undefined

  constructor(path: string) {
    this.#path = path
  }

  /** Returns all requests logged so far, in order. Objects returned earlier are updated in place. */
  requests(): CoreRequest[] {
    this.#read()
    return [...this.#requests.values()]
  }

  /**
   * @param fits selects among several requests with the same prompt and completion; the last match wins
   * @returns the last request with this prompt whose completion begins with these ids
   */
  find(
    prompt: readonly number[],
    ids: readonly number[],
    fits: (request: CoreRequest) => boolean = () => true,
  ): CoreRequest | undefined {
    this.#read()
    const sampled = ids.join()
    const candidates = this.#byPrompt
      .get(prompt.join())
      ?.filter((request) => request.ids.slice(0, ids.length).join() === sampled)
    return candidates?.findLast(fits) ?? candidates?.at(-1)
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
        if (line !== '') this.#add(JSON.parse(line))
    }
  }

  #add(line: Line): void {
    if ('asked' in line) {
      const { asked, prompt, params, lora } = line
      const request = {
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
      this.#requests.set(asked, request)
      const key = prompt.join()
      const candidates = this.#byPrompt.get(key)
      if (candidates) candidates.push(request)
      else this.#byPrompt.set(key, [request])
      return
    }
    const request = this.#requests.get(line.sampled)
    if (request === undefined) return
    request.lastAtMs = line.at * 1_000
    if (!line.heard) return
    request.ids.push(...line.ids)
    request.logprobs.push(...(line.logprobs ?? []))
    request.weights.push(...line.ids.map(() => line.weights))
    if (line.finish !== null) Object.assign(request, { finish: line.finish, stop: line.stop })
  }
}
