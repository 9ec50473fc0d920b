import { isRecord, parseJson } from '../../../../base/json.ts'
import { raceAbort } from '../../../../base/race-abort.ts'
import type { EngineConnection } from './connection.ts'
import { isLastingRejection } from './failures.ts'

/** The time limit for a query; a busy or hung server is queried again when its version is next needed. */
const QUERY_MS = 5_000

/**
 * A server's version. It is requested when it is first needed, and again after the server was unreachable. If the query
 * fails for a reason that may be transient, the version is unknown only until it is needed again.
 */
export class ServerVersion {
  readonly #connection: Pick<EngineConnection, 'query'>
  readonly #paths: readonly string[]
  readonly #limitMs: number
  #fields: Promise<Record<string, unknown>> | undefined
  /** The fields once they have arrived. */
  #known: Record<string, unknown> | undefined

  /**
   * @param paths routes that may return `version`; the first that exists is used
   * @param limitMs the time after which the version of a server that does not respond counts as unknown
   */
  constructor(connection: Pick<EngineConnection, 'query'>, paths: readonly string[], limitMs = QUERY_MS) {
    this.#connection = connection
    this.#paths = paths
    this.#limitMs = limitMs
  }

  /** Discards the version, because another server may replace this one. */
  forget(): void {
    this.#fields = undefined
    this.#known = undefined
  }

  /**
   * Returns the version with the other fields of the same response; empty if the server does not report it.
   * @param signal ends the wait of this caller
   */
  async getFields(signal: AbortSignal): Promise<Record<string, unknown>> {
    // Some clients need the version for each request, which must not create the promises of a wait.
    if (this.#known !== undefined) return this.#known
    this.#fields ??= this.#query()
    const query = this.#fields
    const fields = await raceAbort(query, signal)
    if (this.#fields === query) this.#known = fields
    return fields
  }

  /** Returns whether the server has this version or a newer one; false if its version is unknown. */
  async isSince(first: string, signal: AbortSignal): Promise<boolean> {
    const { version } = await this.getFields(signal)
    return typeof version === 'string' && isSince(version, first)
  }

  /**
   * Returns a warning for operators about a server that is older than all tested versions.
   * @param first the first release: a lower number is a build without a version
   */
  async findWarning(
    [program, first, tested]: readonly [program: string, first: string, tested: string],
    signal: AbortSignal,
  ): Promise<string | undefined> {
    if (!(await this.isSince(first, signal)) || (await this.isSince(tested, signal))) return undefined
    const { version } = await this.getFields(signal)
    return `it is ${program} ${version}, older than ${tested}, the oldest with which llm-proxy is tested: upgrade it`
  }

  /**
   * Queries the version. Requests and health checks share the query: none of them cancels it, and each waits as long as
   * its signal allows.
   */
  async #query(): Promise<Record<string, unknown>> {
    const limit = AbortSignal.timeout(this.#limitMs)
    let isTransient = false
    for (const path of this.#paths) {
      const body = await this.#connection.query(path, limit).then(parseJson, (thrown) => {
        isTransient ||= !isLastingRejection(thrown)
      })
      if (isRecord(body) && typeof body.version === 'string') return body
    }
    if (isTransient) this.forget()
    return {}
  }
}

/** Compares versions such as `0.32.1.dev12+gabc`; one without numbers is older than all others. */
function isSince(version: string, first: string): boolean {
  const parts = parseVersion(version)
  for (const [index, number] of parseVersion(first).entries()) {
    const part = parts[index] ?? 0
    if (part !== number) return part > number
  }
  return true
}

function parseVersion(version: string): number[] {
  return (/^v?(\d+(?:\.\d+)*)/.exec(version)?.[1] ?? '').split('.').map(Number)
}
