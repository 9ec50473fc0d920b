/** The output of an output parser for a completion, merged as an agent merges it. */
import type { ToolCall, ToolCallDelta } from '../../src/protocol/canonical/messages.ts'
import type { OutputDelta } from '../../src/proxy/tokens/parsers/output-delta.ts'
import type { OutputParser } from '../../src/proxy/tokens/parsers/output-parser.ts'

/** The parts of an agent's assistant message. */
export interface ParsedOutput {
  content: string
  reasoning: string
  toolCalls: ToolCall[]
}

/** Parses a complete completion at once. */
export function parseComplete(parser: OutputParser, text: string): ParsedOutput {
  return mergeDeltas([parser.push(text), parser.finish()])
}

/** Merges the deltas of one completion as an agent does. */
export function mergeDeltas(deltas: Iterable<OutputDelta>): ParsedOutput {
  const merged: ParsedOutput = { content: '', reasoning: '', toolCalls: [] }
  for (const delta of deltas) {
    merged.content += delta.content ?? ''
    merged.reasoning += delta.reasoning ?? ''
    for (const call of delta.toolCalls ?? []) mergeToolCall(merged.toolCalls, call)
  }
  return merged
}

function mergeToolCall(calls: ToolCall[], delta: ToolCallDelta): void {
  const call = calls[delta.index] ?? { id: '', type: 'function', function: { name: '', arguments: '' } }
  calls[delta.index] = call
  if (delta.id !== undefined) call.id = delta.id
  call.function.name += delta.function?.name ?? ''
  call.function.arguments += delta.function?.arguments ?? ''
}
