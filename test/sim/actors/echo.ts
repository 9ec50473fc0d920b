/** Alters completions as real agents do when they send them back. */
import type { Attempt } from './history.ts'
import type { ChatMessage, ToolCall } from './oracle.ts'

type Fields = Record<string, unknown>

/** Changes that agents make to the arguments of a tool call. */
const ARGUMENT_EDITS: readonly ((input: Fields) => Fields)[] = [
  (input) => input,
  // As Claude Code does, and the AI SDK with zod.
  (input) => ({ ...input, replace_all: false }),
  (input) => ({ ...input, text: String(input.text).trimEnd() }),
  ({ limit, ...input }) => ({ ...input, ...(limit !== undefined && { limit: Number(limit) }) }),
]

/** The length above which arguments are cut in older messages. */
const LONG_CHARS = 1_200

/** Returns the echo of a completion, followed by the results of its tool calls. */
export function getEcho({ text = '', toolCalls = [] }: Attempt, random: () => number): ChatMessage[] {
  const content = random() < 0.5 ? text : text.trim()
  if (toolCalls.length === 0) return [{ role: 'assistant', content }]
  const edit = ARGUMENT_EDITS[Math.floor(random() * ARGUMENT_EDITS.length)]!
  const renames = random() < 0.15
  const edited = toolCalls.map((toolCall): ToolCall => {
    const { name, arguments: input } = toolCall.function
    const function_ = { name: renames ? 'invalid' : name, arguments: JSON.stringify(edit(JSON.parse(input))) }
    return { ...toolCall, function: function_ }
  })
  // Kimi Code moves failed tool calls and their results before the others.
  const ordered = random() < 0.2 ? edited.toReversed() : edited
  const results = ordered.map(
    ({ id }): ChatMessage => ({
      role: 'tool',
      tool_call_id: id,
      content: `result ${toolCalls.findIndex((toolCall) => toolCall.id === id)}`,
    }),
  )
  return [{ role: 'assistant', content, tool_calls: ordered }, ...results]
}

/**
 * Cuts long arguments, as deepagents does.
 * @returns whether there were any
 */
export function prune(messages: ChatMessage[]): boolean {
  let isPruned = false
  for (const [index, message] of messages.entries()) {
    const { tool_calls: toolCalls } = message
    if (!toolCalls?.some(isLong)) continue
    isPruned = true
    messages[index] = {
      ...message,
      tool_calls: toolCalls.map((toolCall) =>
        isLong(toolCall)
          ? {
              ...toolCall,
              function: { ...toolCall.function, arguments: '{"text":"...(argument truncated)"}' },
            }
          : toolCall,
      ),
    }
  }
  return isPruned
}

function isLong(toolCall: ToolCall): boolean {
  return toolCall.function.arguments.length > LONG_CHARS
}
