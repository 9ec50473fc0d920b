/**
 * Conversion of input items to canonical messages. The schemas are those of the API and of Codex (`ResponseItem` in
 * codex-rs).
 */
import Type from 'typebox'
import { createUnsupportedError, type ProxyError } from '../../../base/errors.ts'
import type { ChatMessage, ToolCall } from '../../../protocol/canonical/messages.ts'
import { NO_MEMO, type PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { createChecker, toNullable } from '../common/check.ts'
import { toJsonText } from '../common/json-text.ts'
import { omitFields } from '../common/other-fields.ts'
import { unseal } from '../common/sealed-reasoning.ts'
import { formatToolArguments } from '../common/tool-input.ts'
import { Content, joinAssistantTexts, lowerContent } from './content.ts'
import { getFreeformArguments, toModelCallId } from './freeform.ts'
import type { InputItem, ToolParam } from './schema.ts'
import { describeTools, lowerTools, toModelName } from './tools.ts'

const CallId = Type.String({ minLength: 1 })
const called = { name: Type.String({ minLength: 1 }), namespace: toNullable(Type.String()) }
const Texts = Type.Array(Type.Object({ text: Type.String() }))

const checkMessage = createChecker(
  Type.Object({
    role: Type.Union(['user', 'assistant', 'system', 'developer'].map((role) => Type.Literal(role))),
    content: Content,
  }),
)
const checkAgentMessage = createChecker(
  Type.Object({
    content: Type.Array(
      Type.Union([
        Type.Object({ type: Type.Literal('input_text'), text: Type.String() }),
        Type.Object({ type: Type.Literal('encrypted_content'), encrypted_content: Type.String() }),
      ]),
    ),
  }),
)
const checkReasoning = createChecker(
  Type.Object({
    summary: toNullable(Texts),
    content: toNullable(Texts),
    encrypted_content: toNullable(Type.String()),
  }),
)
const checkFunctionCall = createChecker(Type.Object({ ...called, call_id: CallId, arguments: Type.String() }))
const checkCustomCall = createChecker(Type.Object({ ...called, call_id: CallId, input: Type.String() }))
const Action = Type.Object({
  command: Type.Array(Type.String()),
  env: toNullable(Type.Record(Type.String(), Type.Unknown())),
})
const checkShellCall = createChecker(
  Type.Object({ call_id: toNullable(CallId), id: toNullable(CallId), action: Action }),
)
const checkSearchCall = createChecker(
  Type.Object({ call_id: CallId, execution: Type.Literal('client'), arguments: Type.Unknown() }),
)
const checkSearchOutput = createChecker(
  Type.Object({
    call_id: CallId,
    execution: Type.Literal('client'),
    tools: Type.Array(Type.Object({ type: Type.String() })),
  }),
)
const checkOutput = createChecker(Type.Object({ call_id: CallId, output: Content }))
const checkNotice = createChecker(Type.Object({ name: Type.String({ minLength: 1 }), output: Content }))
const checkTools = createChecker(Type.Object({ tools: Type.Array(Type.Object({ type: Type.String() })) }))

/** Tools that a request contains among its input items, as Codex sends them. */
export interface InputTools {
  tools: ToolParam[]
  /** The path of the tools in the request. */
  at: string
  /** Whether the tools are the output of a search, in which the model reads their definitions. */
  isFound: boolean
}

/** The messages and tools that items are lowered to. */
interface CanonicalItems {
  messages: ChatMessage[]
  tools: InputTools[]
}

/** An input item, and its path in the body. */
interface ItemWithPath {
  item: InputItem
  at: string
}

/**
 * Lowers items. Items that form one message are lowered together, as a group. A group of an earlier request is not
 * lowered again.
 * @throws ProxyError `invalid_request` naming the field, `unsupported` for items without an equivalent message
 */
export function lowerItems(items: readonly InputItem[], memo: PartMemo = NO_MEMO): CanonicalItems {
  const lowered: CanonicalItems = { messages: [], tools: [] }
  for (const group of groupItems(items)) {
    const { messages, tools } = memo.computeOnce(lowerGroup, group.at(-1)!.item, group)
    lowered.messages.push(...messages)
    lowered.tools.push(...tools)
  }
  return lowered
}

/** Lowers a group. @param _last the group's last item, by which `memo` identifies the group and all items before it */
function lowerGroup(_last: InputItem, group: readonly ItemWithPath[]): CanonicalItems {
  const conversation = new ItemConverter()
  for (const { item, at } of group) conversation.add(item, at)
  // Copied, because many of these lists are cached, and an array that was pushed to reserves memory for about sixteen
  // more elements.
  return { messages: conversation.messages.slice(), tools: conversation.tools }
}

/** Groups items: the parts of one completion form a group; each other item is a group. */
function groupItems(items: readonly InputItem[]): ItemWithPath[][] {
  const groups: ItemWithPath[][] = []
  let isOpen = false
  let before: string | undefined
  let turn: string | undefined
  for (const [index, item] of items.entries()) {
    const type = item.type ?? 'message'
    const isPart = isPartOfCompletion(type, item)
    const named = findTurnOfItem(item)
    const isOther = named !== undefined && turn !== undefined && named !== turn
    // Two consecutive assistant messages are two completions, for instance examples that the agent wrote.
    const isContinued = isOpen && isPart && !isOther && !(type === 'message' && before === 'message')
    turn = isContinued ? (named ?? turn) : named
    const placed = { item, at: `input.${index}` }
    if (isContinued) groups.at(-1)!.push(placed)
    else groups.push([placed])
    isOpen = isPart
    before = type
  }
  return groups
}

const ITEM_ID = /^[a-z]+_([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})_\d+$/

/**
 * Returns the turn id in an item's id, which separates consecutive completions: Codex keeps the items that an
 * interrupted stream had completed, such as reasoning, before those of the next attempt.
 */
function findTurnOfItem({ id }: InputItem): string | undefined {
  return typeof id === 'string' ? ITEM_ID.exec(id)?.[1] : undefined
}

function isPartOfCompletion(type: string, { role }: InputItem): boolean {
  if (type === 'message') return role === 'assistant'
  return type === 'reasoning' || type === 'additional_tools' || type.endsWith('_call')
}

/** The canonical message that is assembled from the items of one completion. */
interface AssistantMessage {
  role: 'assistant'
  content: string | null
  reasoning_content?: string
  refusal?: string
  tool_calls?: ToolCall[]
}

/**
 * A converter of items. The agent sends a completion back as several items: reasoning, a message, tool calls. They
 * become one message again, because the model sampled them as one, and prompts are matched by messages.
 */
class ItemConverter implements CanonicalItems {
  readonly messages: ChatMessage[] = []
  readonly tools: InputTools[] = []
  /** The message to which the next item of the same completion is added. */
  #assistantMessage: AssistantMessage | undefined
  #lastWasMessage = false

  add(item: InputItem, at: string): void {
    const type = item.type ?? 'message'
    if (type === 'message') this.#addMessage(item, at)
    else if (type === 'agent_message') this.#addAgentMessage(item, at)
    else if (type === 'reasoning') this.#addReasoning(item, at)
    else if (type.endsWith('_call')) this.#addCallItem(type, item, at)
    else if (type === 'tool_search_output') this.#addSearchOutput(item, at)
    else if (type.endsWith('_call_output')) this.#addOutput(type, item, at)
    else if (type === 'additional_tools') {
      this.tools.push({ tools: checkTools(item, at).tools, at: `${at}.tools`, isFound: false })
    } else throw createUnsupportedItemError(type, at)
    this.#lastWasMessage = type === 'message'
  }

  #addMessage(item: InputItem, at: string): void {
    const { role, content } = checkMessage(item, at)
    // Two consecutive assistant messages are two completions, for instance examples that the agent wrote.
    if (role !== 'assistant' || this.#lastWasMessage) this.#assistantMessage = undefined
    if (role === 'assistant') {
      const message = this.#openAssistantMessage()
      const { text, refusal } = joinAssistantTexts(content, `${at}.content`)
      if (text !== null) message.content = (message.content ?? '') + text
      if (refusal !== null) message.refusal = (message.refusal ?? '') + refusal
      return
    }
    const fields = {
      // Few templates have a developer role, which corresponds to the system role.
      role: role === 'developer' ? 'system' : role,
      content: lowerContent(content, `${at}.content`),
    }
    this.messages.push({ ...omitFields(item, BOOKKEEPING), ...fields } as ChatMessage)
  }

  /**
   * Adds a message from one of Codex's agents to another. Codex marks the tool argument that contains the message as
   * `encrypted`: OpenAI's service encrypts it, and decrypts it for the receiving agent. This proxy does not encrypt it,
   * so the argument and the message contain the text that the model sampled.
   */
  #addAgentMessage(item: InputItem, at: string): void {
    const { content } = checkAgentMessage(item, at)
    const texts = content.map((part) => (part.type === 'input_text' ? part.text : part.encrypted_content))
    this.#assistantMessage = undefined
    this.messages.push({ role: 'user', content: texts.join('') })
  }

  #addCallItem(type: string, item: InputItem, at: string): void {
    if (type === 'function_call') {
      const { call_id, name, namespace, arguments: written } = checkFunctionCall(item, at)
      this.#addCall(call_id, toModelName(name, namespace), written)
    } else if (type === 'custom_tool_call') {
      const { call_id, name, namespace, input } = checkCustomCall(item, at)
      this.#addCall(
        toModelCallId(call_id),
        toModelName(name, namespace),
        getFreeformArguments(call_id, input),
      )
    } else if (type === 'local_shell_call') {
      const { call_id, id, action } = checkShellCall(item, at)
      this.#addCall(call_id ?? id ?? '', 'local_shell', formatShellArguments(action))
    } else if (type === 'tool_search_call') {
      const { call_id, arguments: written } = checkSearchCall(item, at)
      this.#addCall(
        call_id,
        'tool_search',
        typeof written === 'string' ? written : formatToolArguments(written),
      )
    } else throw createUnsupportedItemError(type, at)
  }

  #addSearchOutput(item: InputItem, at: string): void {
    const { call_id, tools } = checkSearchOutput(item, at)
    this.#assistantMessage = undefined
    const found = { tools, at: `${at}.tools`, isFound: true }
    this.tools.push(found)
    const content = describeTools(lowerTools(tools, found.at))
    this.messages.push({ role: 'tool', tool_call_id: call_id, content })
  }

  #addOutput(type: string, item: InputItem, at: string): void {
    if (!OUTPUTS.includes(type)) throw createUnsupportedItemError(type, at)
    this.#assistantMessage = undefined
    if (isNotice(item)) {
      this.#addNotice(item, at)
      return
    }
    // In the API, the output of a local shell has its call id in `id`. Codex sends a function's output instead.
    const isShell = type === 'local_shell_call_output' && item.call_id === undefined
    const { call_id, output } = checkOutput(isShell ? { ...item, call_id: item.id } : item, at)
    const content = lowerContent(output, `${at}.output`)
    this.messages.push({ role: 'tool', tool_call_id: toModelCallId(call_id), content } as ChatMessage)
  }

  /**
   * Adds a notice: Codex reports its goals as the output of a function that was not called, with a name and without a
   * call id.
   */
  #addNotice(item: InputItem, at: string): void {
    const { name, output } = checkNotice(item, at)
    const result = lowerContent(output, `${at}.output`)
    const content =
      typeof result === 'string' ? `${name}: ${result}` : [{ type: 'text', text: `${name}:` }, ...result]
    this.messages.push({ role: 'user', content } as ChatMessage)
  }

  /** Adds reasoning: the sealed original has precedence over the text that was shown. */
  #addReasoning(item: InputItem, at: string): void {
    const { encrypted_content, content, summary } = checkReasoning(item, at)
    const sealed = encrypted_content ? unseal(encrypted_content) : undefined
    const shown = content?.length ? content : (summary ?? [])
    const text = sealed ?? shown.map((part) => part.text).join('')
    const assistantMessage = this.#openAssistantMessage()
    if (text !== '') assistantMessage.reasoning_content = (assistantMessage.reasoning_content ?? '') + text
  }

  #addCall(id: string, name: string, written: string): void {
    const message = this.#openAssistantMessage()
    message.tool_calls ??= []
    message.tool_calls.push({ id, type: 'function', function: { name, arguments: written } })
  }

  #openAssistantMessage(): AssistantMessage {
    if (this.#assistantMessage === undefined) {
      this.#assistantMessage = { role: 'assistant', content: null }
      this.messages.push(this.#assistantMessage)
    }
    return this.#assistantMessage
  }
}

function isNotice({ type, call_id, name }: InputItem): boolean {
  return type === 'function_call_output' && call_id === undefined && typeof name === 'string'
}

function createUnsupportedItemError(type: string, at: string): ProxyError {
  return createUnsupportedError(`Input items of type '${type}' are not supported`, `${at}.type`)
}

const OUTPUTS: readonly string[] = [
  'function_call_output',
  'custom_tool_call_output',
  'local_shell_call_output',
]

/** Fields of a message that only agents, or OpenAI's service, use. */
const BOOKKEEPING = new Set(['type', 'id', 'status', 'phase', 'internal_chat_message_metadata_passthrough'])

/** Returns the arguments as the model sampled them, without the empty fields that the API's action has as well. */
function formatShellArguments(action: { env?: Record<string, unknown> | null | undefined }): string {
  const members = Object.entries(action).filter(([name, value]) => {
    if (name === 'type' || value === null) return false
    return name !== 'env' || Object.keys(value as object).length > 0
  })
  return toJsonText(Object.fromEntries(members))
}
