/**
 * Constrained decoding of tool calls in the model's own markup, as in the server's chat route, if the server supports
 * it.
 */
import type { TokenRequest } from '../wire/request.ts'
import type { ServerVersion } from '../wire/server-version.ts'
import { getToolCallRequest, needsConstraint } from './tool-call-request.ts'

export interface ToolCallConstraintsOptions {
  /** The first version of the server that supports the constraints. */
  since: string
  /** Returns whether the other server information allows the constraints. Default: it does. */
  allows?(server: Record<string, unknown>): boolean
}

export class ToolCallConstraints {
  readonly #version: ServerVersion
  readonly #options: ToolCallConstraintsOptions
  /** A warning for operators, set once a request needed constraints that the server does not support. */
  warning: string | undefined

  constructor(version: ServerVersion, options: ToolCallConstraintsOptions) {
    this.#version = version
    this.#options = options
  }

  /** Discards the warning, because another server may replace this one. */
  forget(): void {
    this.warning = undefined
  }

  /**
   * Adds `fields` to the body of the request if the server supports them.
   * @param fields the constraint; undefined: none
   */
  async constrain(
    request: TokenRequest,
    fields: object | undefined,
    signal: AbortSignal,
  ): Promise<TokenRequest> {
    if (fields === undefined) return request
    const { since, allows } = this.#options
    const isNew = await this.#version.isSince(since, signal)
    if (isNew && (allows?.(await this.#version.getFields(signal)) ?? true))
      return { ...request, body: { ...request.body, ...fields } }
    const calls = getToolCallRequest(request)
    if (calls && needsConstraint(calls)) this.warning = this.#warningText
    return request
  }

  get #warningText(): string {
    return (
      `its version is not known to be ${this.#options.since} or newer, or its grammar backend is not xgrammar: ` +
      'in token mode, strict tools and parallel_tool_calls: false do not constrain sampling, and forced tool ' +
      'calls are sampled as a JSON array'
    )
  }
}
