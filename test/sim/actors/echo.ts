/** Alters completions as real agents do when they send them back. */
import type { Attempt } from './history.ts'
import type { Call, ChatMessage } from './oracle.ts'

type Fields = Record<string, unknown>

/** Changes to the arguments of a tool call. */
const TIDY: readonly ((input: Fields) => Fields)[] = [
  (input) => input,
  // As Claude Code does, and the AI SDK with zod.
  (input) => ({ ...input, replace_all: false }),
  (input) => ({ ...input, text: String(input.text).trimEnd() }),
  ({ limit, ...input }) => ({ ...input, ...(limit !== undefined && { limit: Number(limit) }) }),
]

/** The length above which arguments are cut in older messages. */
const LONG_CHARS = 1_200

/** Returns the echo of a completion, followed by the results of its tool calls. */
export function getEcho({ text = '', calls = [] }: Attempt, random: () => number): ChatMessage[] {
  const content = random() < 0.5 ? text : text.trim()
  if (calls.length === 0) return [{ role: 'assistant', content }]
  const tidy = TIDY[Math.floor(random() * TIDY.length)]!
  const renames = random() < 0.15
  const tidied = calls.map((call): Call => {
    const { name, arguments: input } = call.function
    const function_ = { name: renames ? 'invalid' : name, arguments: JSON.stringify(tidy(JSON.parse(input))) }
    return { ...call, function: function_ }
  })
  // Kimi Code moves failed tool calls and their results before the others.
  const ordered = random() < 0.2 ? tidied.toReversed() : tidied
  const results = ordered.map(
    ({ id }): ChatMessage => ({
      role: 'tool',
      tool_call_id: id,
      content: `result ${calls.findIndex((call) => call.id === id)}`,
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
    const { tool_calls: calls } = message
    if (!calls?.some(isLong)) continue
    isPruned = true
    messages[index] = {
      ...message,
      tool_calls: calls.map((call) =>
        isLong(call)
          ? { ...call, function: { ...call.function, arguments: '{"text":"...(argument truncated)"}' } }
          : call,
      ),
    }
  }
  return isPruned
}

function isLong(call: Call): boolean {
  return call.function.arguments.length > LONG_CHARS
}
