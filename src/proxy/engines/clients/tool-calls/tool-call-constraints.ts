/** Whether a server holds answers to calls in the model's own markup, as its own chat route does. */
import type { TokenRequest } from '../wire/request.ts'
import type { ServerVersion } from '../wire/server-version.ts'
import { getToolCallRequest, wantsMore } from './tool-call-request.ts'

export interface ToolCallConstraintsOptions {
  /** The first version that does. */
  since: string
  /** Whether nothing else that the server says beside its version speaks against it. */
  allows?(said: Record<string, unknown>): boolean
}

export class ToolCallConstraints {
  readonly #version: ServerVersion
  readonly #options: ToolCallConstraintsOptions
  /** What an operator must know, once a call has found out. */
  warning: string | undefined

  constructor(version: ServerVersion, options: ToolCallConstraintsOptions) {
    this.#version = version
    this.#options = options
  }

  /** Another server may come up in its place. */
  forget(): void {
    this.warning = undefined
  }

  /**
   * The request with `fields` in its body, where the server knows what they mean.
   * @param fields what holds the answer to calls; undefined: nothing does
   */
  async hold(request: TokenRequest, fields: object | undefined, signal: AbortSignal): Promise<TokenRequest> {
    if (fields === undefined) return request
    const { since, allows } = this.#options
    const isNew = await this.#version.isSince(since, signal)
    if (isNew && (allows?.(await this.#version.said(signal)) ?? true))
      return { ...request, body: { ...request.body, ...fields } }
    const calls = getToolCallRequest(request)
    if (calls && wantsMore(calls)) this.warning = this.#words
    return request
  }

  get #words(): string {
    return (
      `its version is not known to be ${this.#options.since} or newer: in token mode, tools that are strict and ` +
      'parallel_tool_calls: false do not bind what it samples, and forced calls are sampled as a JSON array'
    )
  }
}
