/**
 * Renders the embedded model's chat template in TypeScript, so that the embedded engine starts without Python. A test
 * compares the result with that of `train/chat-template.jinja` in Jinja2.
 */
import { ProxyError } from '../../base/errors.ts'
import type { ChatMessage, Tool, ToolCall } from '../../protocol/canonical/messages.ts'
import { getRawNumber } from '../../protocol/canonical/number-texts.ts'

const DEFAULT_SYSTEM = 'You are a helpful assistant.'

/** The text before and after the tools, each of which is on a separate line. */
const TOOLS_HEAD =
  '\n\n# Tools\n\nYou may call one or more functions to assist with the user query.' +
  '\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>'
const TOOLS_TAIL =
  '\n</tools>\n\nFor each function call, return a json object with function name and arguments within ' +
  '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'

/** Renders a conversation. @throws ProxyError `unsupported` for content that is not text */
export function renderChatMl(
  messages: readonly ChatMessage[],
  tools: readonly Tool[] | null,
  addGenerationPrompt: boolean,
): string {
  const [first] = messages
  const hasSystem = first?.role === 'system' || first?.role === 'developer'
  const system = (hasSystem && getText(first, 0)) || (hasSystem ? '' : DEFAULT_SYSTEM)
  const toolLines = (tools ?? []).map((tool) => `\n${formatPythonJson(tool)}`)
  const signatures = toolLines.length === 0 ? '' : TOOLS_HEAD + toolLines.join('') + TOOLS_TAIL
  const blocks = messages.flatMap((_, index) =>
    index === 0 && hasSystem ? [] : [renderMessage(messages, index, hasSystem ? 1 : 0)],
  )
  return [
    `<|im_start|>system\n${system}${signatures}<|im_end|>\n`,
    ...blocks,
    addGenerationPrompt ? '<|im_start|>assistant\n' : '',
  ].join('')
}

function renderMessage(messages: readonly ChatMessage[], index: number, start: number): string {
  const message = messages[index]!
  const content = getText(message, index)
  switch (message.role) {
    case 'assistant':
      return `<|im_start|>assistant\n${renderCompletion(message, content)}<|im_end|>\n`
    case 'tool': {
      const opens = index === start || messages[index - 1]?.role !== 'tool'
      const closes = messages[index + 1]?.role !== 'tool'
      const block = `\n<tool_response>\n${content}\n</tool_response>`
      return `${opens ? '<|im_start|>user' : ''}${block}${closes ? '<|im_end|>\n' : ''}`
    }
    default:
      return `<|im_start|>${message.role}\n${content}<|im_end|>\n`
  }
}

function renderCompletion(message: ChatMessage, content: string): string {
  const { reasoning_content, reasoning } = message as ChatMessage & { reasoning?: string | null }
  const thought = reasoning_content || reasoning || ''
  const body = thought === '' ? content : content.replace(/^\n+/, '')
  const calls = ((message.role === 'assistant' && message.tool_calls) || []) as ToolCall[]
  let text = thought === '' ? body : `<think>\n${thought.replace(/^\n+|\n+$/g, '')}\n</think>\n\n${body}`
  for (const [index, { function: called }] of calls.entries()) {
    if (index > 0 || (body !== '' && !body.endsWith('\n'))) text += '\n'
    const { name, arguments: written } = called
    text += `<tool_call>\n{"name": ${formatPythonJson(name)}, "arguments": ${formatArguments(written)}}\n</tool_call>`
  }
  return text
}

/** Formats the arguments of a tool call. Text that is not a JSON object or list is returned unchanged. */
function formatArguments(written: unknown): string {
  if (written === undefined || written === null || written === '') return '{}'
  if (typeof written !== 'string') return formatPythonJson(written)
  try {
    const parsed: unknown = JSON.parse(written)
    return typeof parsed === 'object' && parsed !== null ? formatPythonJson(parsed) : written
  } catch {
    return written
  }
}

function getText({ content }: ChatMessage, index: number): string {
  if (content === null || content === undefined) return ''
  if (typeof content === 'string') return content
  const texts = content.map((part, i) => {
    if (part.type === 'text') return part.text
    if (part.type === 'refusal') return part.refusal
    const message = `content of type ${part.type} cannot be turned into tokens by the proxy`
    throw new ProxyError('unsupported', message, { param: `messages.${index}.content.${i}` })
  })
  return texts.join('\n')
}

/** Serializes a value as JSON like Python, with a space after each comma and colon. */
export function formatPythonJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(formatPythonJson).join(', ')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  const number = getRawNumber(value)
  if (number !== undefined) return number
  const members = Object.entries(value).map(
    ([key, item]) => `${JSON.stringify(key)}: ${formatPythonJson(item)}`,
  )
  return `{${members.join(', ')}}`
}
