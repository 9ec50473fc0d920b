/** What an output parser makes of a completion, put together as an agent does. */
import type { ToolCall, ToolCallDelta } from '../../src/protocol/canonical/messages.ts'
import type { OutputDelta } from '../../src/proxy/tokens/parsers/output-delta.ts'
import type { OutputParser } from '../../src/proxy/tokens/parsers/output-parser.ts'

/** What an agent's assistant message is made of. */
export interface ParsedOutput {
  content: string
  reasoning: string
  toolCalls: ToolCall[]
}

/** The whole of a completion at once. */
export function parseWhole(parser: OutputParser, text: string): ParsedOutput {
  return mergeDeltas([parser.push(text), parser.finish()])
}

/** Deltas of one completion, put together as an agent does. */
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
