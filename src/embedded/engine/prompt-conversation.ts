/**
 * Parses a rendered prompt to the conversation that playbook rules are matched against. It is the same conversation
 * whether the engine or a proxy has rendered the messages.
 */

/** A message of a prompt. */
export interface PromptMessage {
  role: 'user' | 'assistant' | 'tool'
  text: string
}

/** The conversation of a prompt. */
export interface PromptConversation {
  /** All messages except system messages, because the template adds one if the request has none. */
  messages: readonly PromptMessage[]
  /** The names of the available tools. */
  tools: ReadonlySet<string>
  /** The text of the last user message; empty if there is none. */
  task: string
  /** The number of assistant messages since the last user message. */
  step: number
}

const BLOCK = /<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n/gsu
const TOOL_RESPONSE = /<tool_response>\n(.*?)\n<\/tool_response>/gsu
const GENERATION_PROMPT = '<|im_start|>assistant\n'

/** Parses a prompt. @returns undefined if the prompt does not end with the template's generation prompt */
export function readPrompt(prompt: string): PromptConversation | undefined {
  if (!prompt.endsWith(GENERATION_PROMPT)) return undefined
  const blocks = [...prompt.matchAll(BLOCK)].map(([, role, text]) => ({ role: role!, text: text! }))
  const system = blocks.find((block) => block.role === 'system')
  const messages = blocks.flatMap(({ role, text }) => readBlock(role, text))
  const taskAt = messages.findLastIndex((message) => message.role === 'user')
  return {
    messages,
    tools: readToolNames(system?.text ?? ''),
    task: messages[taskAt]?.text ?? '',
    step: messages.slice(taskAt + 1).filter((message) => message.role === 'assistant').length,
  }
}

/** Parses a block, which may contain several tool messages: the template writes consecutive ones as one user block. */
function readBlock(role: string, text: string): PromptMessage[] {
  if (role === 'assistant') return [{ role, text }]
  if (role !== 'user') return []
  if (!text.startsWith('<tool_response>')) return [{ role, text }]
  return [...text.matchAll(TOOL_RESPONSE)].map(([, response]) => ({ role: 'tool', text: response! }))
}

function readToolNames(system: string): ReadonlySet<string> {
  const lines = /\n<tools>\n(.*)\n<\/tools>\n/su.exec(system)?.[1]?.split('\n') ?? []
  return new Set(lines.flatMap(getToolName))
}

function getToolName(line: string): string[] {
  try {
    const tool = JSON.parse(line) as { name?: unknown; function?: { name?: unknown } }
    const name = tool.function?.name ?? tool.name
    return typeof name === 'string' ? [name] : []
  } catch {
    // The system message may quote the markup, so a line may contain anything.
    return []
  }
}
