/** Describes a completion that has no text to show. */
import { isBlank } from './visible.ts'

interface Completion {
  status: string
  completion_text: string
  reasoning_content: string | null
  tool_calls: readonly unknown[]
  finish_reason: string | null
}

/**
 * Describes what a completion has instead of a text, and why it ended: `no text, only reasoning (finish reason:
 * length)`.
 * @returns undefined if it has a text, or is not complete yet
 */
export function describeMissingText(turn: Completion): string | undefined {
  const { status, completion_text: text, reasoning_content: reasoning, tool_calls: calls } = turn
  if (status === 'open' || !isBlank(text)) return undefined
  const others = [
    ...(reasoning ? ['reasoning'] : []),
    ...(calls.length > 0 ? [`${calls.length} tool call${calls.length === 1 ? '' : 's'}`] : []),
  ]
  const what = text === '' ? 'no text' : 'only white space as text'
  return `${what}${others.length > 0 ? `, only ${others.join(' and ')}` : ''} (${describeEnd(turn)})`
}

function describeEnd({ status, finish_reason: reason }: Completion): string {
  if (reason !== null) return `finish reason: ${reason}`
  return status === 'completed' ? 'no finish reason' : status
}
