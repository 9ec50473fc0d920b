/**
 * Receives results by polling the session itself, without S3, in the envelope of agentcore-rl-toolkit 0.2
 * (`AgentCoreRuntimeApp`). Apps that do not support the envelope and respond when they are done are supported, too.
 */
import Type, { type Static } from 'typebox'
import { Value } from 'typebox/value'
import { isRecord } from '../../../base/json.ts'
import { pause } from '../../backoff.ts'
import type { AgentResult } from '../runner.ts'
import type { AgentCoreEndpoint } from './endpoint.ts'
import { AgentCoreError } from './errors.ts'
import { quote, readResult } from './result.ts'
import type { AgentCoreSession, ResultSource } from './result-source.ts'

const State = Type.Object({
  version: Type.Literal(1),
  invocation_id: Type.String(),
  status: Type.Enum(['in_progress', 'completed', 'interrupted', 'not_found']),
  result: Type.Optional(Type.Unknown()),
  error: Type.Optional(Type.String()),
})

const FIRST_POLL_MS = 1_000
/** The maximum poll interval; each poll counts towards the quota. */
const MAX_POLL_MS = 10_000
const POLL_GROWTH = 1.5

export class EnvelopeResults implements ResultSource {
  readonly #endpoint: AgentCoreEndpoint

  constructor(endpoint: AgentCoreEndpoint) {
    this.#endpoint = endpoint
  }

  async prepare(): Promise<void> {}

  async run(session: AgentCoreSession, signal: AbortSignal): Promise<AgentResult> {
    const { id, inputId, payload, model } = session
    const start = {
      ...payload,
      _config: model,
      ...createEnvelope(id, { operation: 'start', background: true }),
    }
    const response = await this.#endpoint.start(session, start, signal)
    if (!isState(response, id)) return toAgentResult(response, inputId)
    let state = response
    for (let waitMs = FIRST_POLL_MS; ; waitMs = Math.min(MAX_POLL_MS, waitMs * POLL_GROWTH)) {
      const result = parseState(state, inputId)
      if (result !== undefined) return result
      await pause(waitMs, signal)
      state = await this.#poll(id, signal)
    }
  }

  async checkOnce({ id, inputId }: AgentCoreSession): Promise<AgentResult | undefined> {
    return parseState(await this.#poll(id, AbortSignal.timeout(MAX_POLL_MS)), inputId)
  }

  async close(): Promise<void> {}

  async #poll(id: string, signal: AbortSignal): Promise<Static<typeof State>> {
    const response = await this.#endpoint.pollSession(id, createEnvelope(id, { operation: 'get' }), signal)
    if (isState(response, id)) return response
    throw new AgentCoreError('agent', `it responded to a poll with ${quote(response)}`)
  }
}

/** Creates the envelope. A session has one invocation, with the session's id. */
function createEnvelope(id: string, more: object): object {
  return { _agentcore_runtime: { version: 1, invocation_id: id, ...more } }
}

function isState(response: unknown, id: string): response is Static<typeof State> {
  return Value.Check(State, response) && response.invocation_id === id
}

/** Converts the response of an app without the envelope. */
function toAgentResult(response: unknown, inputId: string): AgentResult {
  if (!isRecord(response) || response.status !== 'processing') return readResult(response, inputId)
  const error = 'its program writes results to S3: use --results s3 with --agentcore-bucket'
  return { status: 'error', rewards: {}, error }
}

/** Converts a state. @returns undefined while the agent is running */
function parseState(state: Static<typeof State>, inputId: string): AgentResult | undefined {
  switch (state.status) {
    case 'in_progress':
      return undefined
    case 'completed':
      if (state.error !== undefined) return { status: 'failed', rewards: {}, error: state.error }
      return readResult(state.result, inputId)
    default:
      return { status: 'error', rewards: {}, error: `AgentCore ended its session early (${state.status})` }
  }
}
