/** Reads an agent's result, a JSON object that the agent's program creates. */
import { isRecord } from '../../../base/json.ts'
import type { AgentResult } from '../runner.ts'

/**
 * Reads a result that an agent wrote to S3, or returned from its session.
 * - `status_code` other than 2xx: the agent failed, with the reason `stop_reason` (both as the toolkit's app writes
 *   them)
 * - `reward`: a number, or an object of named numbers; otherwise `rewards`: the same, or a list whose last number
 *   counts
 * - `input_id`: if present, it must be the one that the agent received
 * @param inputId the id that the agent received
 */
export function readResult(result: unknown, inputId: string): AgentResult {
  if (!isRecord(result)) return createErrorResult('its result is not a JSON object')
  const { status_code: status = 200, stop_reason: reason, input_id: id, payload: _, ...details } = result
  if (id !== undefined && id !== inputId)
    return createErrorResult(`its result is for another sample: ${quote(id)}`)
  if (typeof status !== 'number' || status < 200 || status > 299) {
    const error = typeof reason === 'string' && reason !== '' ? reason : `status_code ${quote(status)}`
    return { status: 'failed', rewards: {}, error, details }
  }
  const rewards = parseRewards(result.reward ?? result.rewards)
  if (rewards === undefined)
    return createErrorResult(`its reward is not a number: ${quote(result.reward ?? result.rewards)}`)
  return { status: 'completed', rewards, details }
}

/** Parses a result. @param text the content of the S3 object */
export function parseResult(text: string, inputId: string): AgentResult {
  try {
    return readResult(JSON.parse(text), inputId)
  } catch {
    return createErrorResult(`its result is not JSON: ${quote(text)}`)
  }
}

/** Returns the named parts of a reward. @returns undefined if it is invalid */
function parseRewards(rewards: unknown): Record<string, number> | undefined {
  if (rewards === undefined || rewards === null) return {}
  if (Array.isArray(rewards)) return rewards.length === 0 ? {} : parseRewards(rewards.at(-1))
  if (isRecord(rewards)) {
    return Object.values(rewards).every(Number.isFinite) ? (rewards as Record<string, number>) : undefined
  }
  return Number.isFinite(rewards) ? { reward: rewards as number } : undefined
}

function createErrorResult(error: string): AgentResult {
  return { status: 'error', rewards: {}, error }
}

const MAX_QUOTED_LENGTH = 200

/** Returns a value as text for an error message, truncated. */
export function quote(value: unknown): string {
  const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? String(value))
  return text.length > MAX_QUOTED_LENGTH ? `${text.slice(0, MAX_QUOTED_LENGTH)}…` : text
}
