/**
 * Reads a rendered prompt back into the conversation that it came from, as far as playbook rules look at it. Rules
 * see the same conversation whether the engine rendered the messages itself or got token ids from a proxy that did.
 */

export interface PromptMessage {
  role: 'user' | 'assistant' | 'tool'
  text: string
}

export interface PromptConversation {
  /** Without system messages: the template adds one where there was none. */
  messages: readonly PromptMessage[]
  /** Names of the tools on offer. */
  tools: ReadonlySet<string>
  /** Text of the last user message; empty if there is none. */
  task: string
  /** Assistant messages since the last user message. */
  step: number
}

const BLOCK = /<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n/gsu
const TOOL_RESPONSE = /<tool_response>\n(.*?)\n<\/tool_response>/gsu
const GENERATION_PROMPT = '<|im_start|>assistant\n'

/** @returns undefined if the prompt does not end where the assistant's turn begins, as the template leaves it */
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

/** The template puts tool messages in a row into one user block. */
function readBlock(role: string, text: string): PromptMessage[] {
  if (role === 'assistant') return [{ role, text }]
  if (role !== 'user') return []
  if (!text.startsWith('<tool_response>')) return [{ role, text }]
  return [...text.matchAll(TOOL_RESPONSE)].map(([, response]) => ({ role: 'tool', text: response! }))
}

function readToolNames(system: string): ReadonlySet<string> {
  const lines = /\n<tools>\n(.*)\n<\/tools>\n/su.exec(system)?.[1]?.split('\n') ?? []
  return new Set(lines.flatMap(nameOfTool))
}

function nameOfTool(line: string): string[] {
  try {
    const tool = JSON.parse(line) as { name?: unknown; function?: { name?: unknown } }
    const name = tool.function?.name ?? tool.name
    return typeof name === 'string' ? [name] : []
  } catch {
    // A system message may quote the markup; what is not a tool's definition offers no tool.
    return []
  }
}
