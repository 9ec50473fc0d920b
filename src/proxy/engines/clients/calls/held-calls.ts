/** Whether a server holds answers to calls in the model's own markup, as its own chat route does. */
import type { EngineConnection } from '../wire/connection.ts'
import { isRecord, parseJson } from '../wire/failures.ts'
import type { TokenRequest } from '../wire/request.ts'
import { askedCalls, wantsMore } from './asked-calls.ts'

export interface HeldCallsOptions {
  /** What answers with the server's `version`: the first of them that is there. */
  paths: readonly string[]
  /** The first version that does. */
  since: string
  /** Whether nothing else that the same route says speaks against it. */
  allows?(said: Record<string, unknown>): boolean
}

/** The version is asked for when a call first needs it, and again when the server has been away. */
export class HeldCalls {
  readonly #connection: EngineConnection
  readonly #options: HeldCallsOptions
  #holds: Promise<boolean> | undefined
  #warning: string | undefined

  constructor(connection: EngineConnection, options: HeldCallsOptions) {
    this.#connection = connection
    this.#options = options
  }

  /** What an operator must know, once a call has found out. */
  get warning(): string | undefined {
    return this.#warning
  }

  /** Another server may come up in its place. */
  forget(): void {
    this.#holds = undefined
    this.#warning = undefined
  }

  /**
   * The request with `fields` in its body, where the server knows what they mean.
   * @param fields what holds the answer to calls; undefined: nothing does
   */
  async hold(request: TokenRequest, fields: object | undefined, signal: AbortSignal): Promise<TokenRequest> {
    if (fields === undefined) return request
    this.#holds ??= this.#ask(signal).catch((thrown) => {
      this.#holds = undefined
      throw thrown
    })
    if (await this.#holds) return { ...request, body: { ...request.body, ...fields } }
    const calls = askedCalls(request)
    if (calls && wantsMore(calls)) this.#warning = this.#words
    return request
  }

  get #words(): string {
    return (
      `its version is not known to be ${this.#options.since} or newer: in token mode, tools that are strict and ` +
      'parallel_tool_calls: false do not bind what it samples, and forced calls are sampled as a JSON array'
    )
  }

  async #ask(signal: AbortSignal): Promise<boolean> {
    for (const path of this.#options.paths) {
      const said = await this.#connection.getText(path, signal).then(parseJson, () => {
        signal.throwIfAborted()
        return undefined
      })
      if (!isRecord(said) || typeof said.version !== 'string') continue
      return isSince(said.version, this.#options.since) && (this.#options.allows?.(said) ?? true)
    }
    return false
  }
}

/** Of versions such as `0.32.1.dev12+gabc`; one without numbers is older than all. */
export function isSince(version: string, first: string): boolean {
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
