import { isRecord, parseJson } from '../../../../base/json.ts'
import type { EngineConnection } from './connection.ts'

/** A server's version: requested when it is first needed, and again after the server was unreachable. */
export class ServerVersion {
  readonly #connection: EngineConnection
  readonly #paths: readonly string[]
  #fields: Promise<Record<string, unknown>> | undefined

  /** @param paths routes that may return `version`; the first that exists is used */
  constructor(connection: EngineConnection, paths: readonly string[]) {
    this.#connection = connection
    this.#paths = paths
  }

  /** Discards the version: another server may replace this one. */
  forget(): void {
    this.#fields = undefined
  }

  /** Returns the version with the other fields of the same response; empty if the server does not report it. */
  async fields(signal: AbortSignal): Promise<Record<string, unknown>> {
    this.#fields ??= this.#query(signal).catch((thrown) => {
      this.#fields = undefined
      throw thrown
    })
    return await this.#fields
  }

  /** Returns whether the server has this version or a newer one; false if its version is unknown. */
  async isSince(first: string, signal: AbortSignal): Promise<boolean> {
    const { version } = await this.fields(signal)
    return typeof version === 'string' && isSince(version, first)
  }

  /**
   * Returns a warning for operators about a server that is older than all tested versions.
   * @param first the first release: a lower number is a build without a version
   */
  async warningBefore(
    [program, first, tested]: readonly [program: string, first: string, tested: string],
    signal: AbortSignal,
  ): Promise<string | undefined> {
    if (!(await this.isSince(first, signal)) || (await this.isSince(tested, signal))) return undefined
    const { version } = await this.fields(signal)
    return `it is ${program} ${version}, older than ${tested}, the oldest with which llm-proxy is tested: upgrade it`
  }

  async #query(signal: AbortSignal): Promise<Record<string, unknown>> {
    for (const path of this.#paths) {
      const body = await this.#connection.query(path, signal).then(parseJson, () => {
        signal.throwIfAborted()
        return undefined
      })
      if (isRecord(body) && typeof body.version === 'string') return body
    }
    return {}
  }
}

/** Compares versions such as `0.32.1.dev12+gabc`; one without numbers is older than all others. */
function isSince(version: string, first: string): boolean {
  const parts = toNumbers(version)
  for (const [index, number] of toNumbers(first).entries()) {
    const part = parts[index] ?? 0
    if (part !== number) return part > number
  }
  return true
}

function toNumbers(version: string): number[] {
  return (/^v?(\d+(?:\.\d+)*)/.exec(version)?.[1] ?? '').split('.').map(Number)
}
