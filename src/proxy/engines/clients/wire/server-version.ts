import { isRecord, parseJson } from '../../../../base/json.ts'
import type { EngineConnection } from './connection.ts'

/** What a server says of its version: asked for when something first depends on it, and again when it has been away. */
export class ServerVersion {
  readonly #connection: EngineConnection
  readonly #paths: readonly string[]
  #said: Promise<Record<string, unknown>> | undefined

  /** @param paths what answers with the `version`: the first of them that is there */
  constructor(connection: EngineConnection, paths: readonly string[]) {
    this.#connection = connection
    this.#paths = paths
  }

  /** Another server may come up in its place. */
  forget(): void {
    this.#said = undefined
  }

  /** The version, and what else the same route says; nothing where the server does not tell it. */
  async said(signal: AbortSignal): Promise<Record<string, unknown>> {
    this.#said ??= this.#ask(signal).catch((thrown) => {
      this.#said = undefined
      throw thrown
    })
    return await this.#said
  }

  /** @returns false also where the version is not known */
  async isSince(first: string, signal: AbortSignal): Promise<boolean> {
    const { version } = await this.said(signal)
    return typeof version === 'string' && isSince(version, first)
  }

  /**
   * @param first release that there is: a lower number is a build without one
   * @returns what an operator must know of a server that is older than all that this was tested with
   */
  async warningBefore(
    [program, first, tested]: readonly [program: string, first: string, tested: string],
    signal: AbortSignal,
  ): Promise<string | undefined> {
    if (!(await this.isSince(first, signal)) || (await this.isSince(tested, signal))) return undefined
    const { version } = await this.said(signal)
    return `it is ${program} ${version}, older than ${tested}, the oldest with which llm-proxy is tested: upgrade it`
  }

  async #ask(signal: AbortSignal): Promise<Record<string, unknown>> {
    for (const path of this.#paths) {
      const said = await this.#connection.ask(path, signal).then(parseJson, () => {
        signal.throwIfAborted()
        return undefined
      })
      if (isRecord(said) && typeof said.version === 'string') return said
    }
    return {}
  }
}

/** Of versions such as `0.32.1.dev12+gabc`; one without numbers is older than all. */
function isSince(version: string, first: string): boolean {
  const parts = numbersOf(version)
  for (const [at, number] of numbersOf(first).entries()) {
    const part = parts[at] ?? 0
    if (part !== number) return part > number
  }
  return true
}

function numbersOf(version: string): number[] {
  return (/^v?(\d+(?:\.\d+)*)/.exec(version)?.[1] ?? '').split('.').map(Number)
}
