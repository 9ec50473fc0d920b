/**
 * The agent-run API of a Harbor server: a request uploads a task as an archive, and the response arrives when the run
 * has ended.
 */
import Type, { type Static, type TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { FormData } from 'undici'
import { parseJson } from '../../base/json.ts'
import { HttpClient } from '../http-client.ts'
import { mapConcurrently } from '../map-concurrently.ts'
import { packTask } from './task-archive.ts'

/** The form field `metadata`, as JSON with the names of the wire; an absent value is null. */
export interface HarborMetadata {
  task_path: string
  agent: {
    name: string | null
    import_path: string | null
    model_name: string | null
    /** The base URL of the session, with `/v1`. */
    llm_proxy_url: string
    kwargs: Readonly<Record<string, unknown>>
  }
  timeout_multiplier: number
  verifier: Readonly<Record<string, unknown>>
  environment_overrides: Readonly<Record<string, unknown>>
  environment_kwargs: Readonly<Record<string, unknown>>
}

const optional = <T extends TSchema>(schema: T) => Type.Optional(Type.Union([schema, Type.Null()]))

const HarborResponse = Type.Object({
  run_id: Type.String(),
  status: Type.Enum(['completed', 'failed', 'timeout', 'error']),
  rewards: optional(Type.Record(Type.String(), Type.Number())),
  rollout_details: optional(Type.Unknown()),
  error: optional(Type.String()),
})

export type HarborRun = Static<typeof HarborResponse>

export interface HarborClientOptions {
  /** `http://harbor:8080` */
  serverUrl: string
  /** The time limit of one run, from the first byte sent. */
  timeoutMs: number
}

/** The number of characters of an invalid response that an error quotes. */
const QUOTED_LENGTH = 300

export class HarborClient {
  readonly #http = new HttpClient()
  readonly #url: string
  readonly #timeoutMs: number

  constructor({ serverUrl, timeoutMs }: HarborClientOptions) {
    this.#url = `${serverUrl.replace(/\/+$/, '')}/api/v1/runs`
    this.#timeoutMs = timeoutMs
  }

  /**
   * Runs one agent on an archive of the directory at `metadata.task_path`. A run that exceeds `timeoutMs` has the
   * status `timeout`.
   * @throws Error that quotes the server's or the connection's error; `signal.reason`
   */
  async submit(metadata: HarborMetadata, signal: AbortSignal): Promise<HarborRun> {
    return this.#send(metadata, await packTask(metadata.task_path), signal)
  }

  /**
   * Runs several agents concurrently; a directory that several of them use is packed once.
   * @returns the runs in the order of `batch`; one that could not be submitted has the status `error`
   * @throws `signal.reason`
   */
  async submitBatch(
    batch: readonly HarborMetadata[],
    { concurrency }: { concurrency: number },
    signal: AbortSignal,
  ): Promise<HarborRun[]> {
    const archives = new Map<string, Promise<Buffer>>()
    const getArchive = (path: string) => archives.get(path) ?? remember(archives, path, packTask(path))
    const runs: HarborRun[] = []
    await mapConcurrently(batch, concurrency, async (metadata, index) => {
      runs[index] = await this.#sendOrReport(metadata, getArchive(metadata.task_path), signal)
    })
    return runs
  }

  async close(): Promise<void> {
    await this.#http.close()
  }

  async #sendOrReport(
    metadata: HarborMetadata,
    archive: Promise<Buffer>,
    signal: AbortSignal,
  ): Promise<HarborRun> {
    try {
      return await this.#send(metadata, await archive, signal)
    } catch (error) {
      signal.throwIfAborted()
      return { run_id: '', status: 'error', error: error instanceof Error ? error.message : String(error) }
    }
  }

  async #send(metadata: HarborMetadata, archive: Buffer, signal: AbortSignal): Promise<HarborRun> {
    const limit = AbortSignal.timeout(this.#timeoutMs)
    const body = new FormData()
    body.append('metadata', JSON.stringify(metadata))
    body.append(
      'task_archive',
      new File([new Uint8Array(archive)], 'task.tar.gz', { type: 'application/gzip' }),
    )
    try {
      const response = await this.#http.send({
        method: 'POST',
        url: this.#url,
        body,
        signal: AbortSignal.any([signal, limit]),
      })
      return parseResponse(response)
    } catch (error) {
      signal.throwIfAborted()
      if (limit.aborted)
        return { run_id: '', status: 'timeout', error: `no response within ${this.#timeoutMs} ms` }
      throw error
    }
  }
}

function remember<V>(map: Map<string, V>, key: string, value: V): V {
  map.set(key, value)
  return value
}

function parseResponse({ status, text }: { status: number; text: string }): HarborRun {
  const response = parseJson(text)
  if (status < 300 && Value.Check(HarborResponse, response)) return response
  throw new Error(`the Harbor server responded with ${status}: ${text.slice(0, QUOTED_LENGTH)}`)
}
