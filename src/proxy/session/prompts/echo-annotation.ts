/**
 * The annotation of changes that an agent made to its tool calls. It is recorded with the turn of the request that
 * contains the changed calls.
 */
import { SideTable } from '../../../base/side-table.ts'
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import { toCanonicalJson } from '../matching/canonical-json.ts'
import { getMessageKey } from '../matching/conversation.ts'
import { computeMessageKey } from '../matching/message-key.ts'
import { type IndexTurn, type PrefixMatch, toMessage } from '../matching/prefix-index.ts'
import type { SessionTurn } from '../matching/session-turns.ts'
import { readArguments } from '../matching/tool-arguments.ts'
import { restoreId, type ToolCallIds } from '../matching/tool-call-ids.ts'
import { readText } from './restore-sampled.ts'

/**
 * The kind of a change. `edited`: the message has the tool-call ids of a turn, but its content does not count as an
 * echo. `unknown_id`: a tool call has an id that a proxy generated, but not for this session. The other kinds name the
 * changed part of an echo.
 */
type EchoKind = 'name' | 'arguments' | 'order' | 'text' | 'edited' | 'unknown_id'

/** One change. `sampled` and `echoed` are JSON or text, truncated if they are long; null: absent. */
interface EchoChange {
  kind: EchoKind
  /** The id of the tool call. */
  call?: string
  /** The name of the changed member of the arguments. */
  path?: string
  sampled: string | null
  echoed: string | null
}

/** The recorded form: `echo` in a turn's annotations. */
export interface EchoAnnotation {
  kinds: EchoKind[]
  /** The id of the turn that sampled the tool calls. */
  from?: string
  changes?: EchoChange[]
}

/** A tool call in a message of the agent, of which only the id is validated. */
type ToolCallEcho = { id: string; function?: { name?: string; arguments?: unknown } }

const MAX_CHANGES = 32
const MAX_CHARS = 200

/** Creates the annotation of a request. @returns undefined if its tool calls are unchanged */
export function createEchoAnnotation(
  { parent, edited }: PrefixMatch<SessionTurn>,
  last: Message | undefined,
  unknownIds: readonly string[],
): { echo: EchoAnnotation } | undefined {
  const turn = edited ?? parent
  const changes = turn === undefined ? [] : findChanges(turn, last)
  const kinds = new Set<EchoKind>(edited === undefined ? [] : ['edited'])
  for (const { kind } of changes) kinds.add(kind)
  if (unknownIds.length > 0) kinds.add('unknown_id')
  if (kinds.size === 0) return undefined
  const edits = { from: turn?.turn.turnId, changes: changes.slice(0, MAX_CHANGES) }
  return { echo: { kinds: [...kinds], ...(turn !== undefined && changes.length > 0 && (edits as object)) } }
}

/** Returns the differences between a turn's completion and its echo in the request that ends with `last`. */
function findChanges({ turn, depth }: IndexTurn<SessionTurn>, last: Message | undefined): EchoChange[] {
  let echo = last
  while (echo !== undefined && echo.depth > depth) echo = echo.parent
  if (turn.completionMessage === undefined || echo?.value.role !== 'assistant') return []
  const sampled = toMessage(turn.completionMessage)
  const calls = (echo.value.tool_calls ?? []) as ToolCallEcho[]
  const echoed = calls.map((call) => ({ ...call, id: restoreId(call.id) }))
  const isInOrder = turn.completionMessage.toolCalls.every(({ id }, index) => echoed[index]?.id === id)
  if (isInOrder && computeMessageKey(sampled).digest === getMessageKey(echo).digest) return []
  const byId = new Map(echoed.map((call) => [call.id, call]))
  const changes = turn.completionMessage.toolCalls.flatMap((call) => findCallChanges(call, byId.get(call.id)))
  if (!isInOrder) {
    const getIds = (calls: readonly { id: string }[]) => calls.map(({ id }) => id).join(' ')
    changes.push(createChange('order', {}, getIds(turn.completionMessage.toolCalls), getIds(echoed)))
  }
  const [sampledText, echoedText] = [readText(sampled).trim(), readText(echo.value).trim()]
  if (sampledText !== echoedText) changes.push(createChange('text', {}, sampledText, echoedText))
  return changes
}

function findCallChanges(
  { id: call, function: sampled }: ToolCallEcho,
  echo: ToolCallEcho | undefined,
): EchoChange[] {
  if (echo === undefined) return []
  const [name, echoedName] = [sampled?.name ?? null, echo.function?.name ?? null]
  const renamed = name === echoedName ? [] : [createChange('name', { call }, name, echoedName)]
  const [before, after] = [sampled?.arguments, echo.function?.arguments].map((args) => readArguments(args))
  if (before!.text === after!.text) return renamed
  if (before!.malformed || after!.malformed)
    return [...renamed, createChange('arguments', { call }, before!.text, after!.text)]
  const [sampledArgs, echoedArgs] = [before!, after!].map(
    ({ text }) => JSON.parse(text) as Record<string, unknown>,
  )
  const paths = new Set([...Object.keys(sampledArgs!), ...Object.keys(echoedArgs!)])
  const members = [...paths].flatMap((path) => {
    const [was, is] = [sampledArgs!, echoedArgs!].map((args) =>
      Object.hasOwn(args, path) ? toCanonicalJson(args[path]) : null,
    )
    return was === is ? [] : [createChange('arguments', { call, path }, was!, is!)]
  })
  return [...renamed, ...members]
}

function createChange(
  kind: EchoKind,
  of: Pick<EchoChange, 'call' | 'path'>,
  sampled: string | null,
  echoed: string | null,
): EchoChange {
  return { kind, ...of, sampled: truncateText(sampled), echoed: truncateText(echoed) }
}

function truncateText(text: string | null): string | null {
  return text === null || text.length <= MAX_CHARS ? text : `${text.slice(0, MAX_CHARS)}…`.toWellFormed()
}

/** Returns the annotation of a recorded turn; undefined: it has none. */
export function readEchoAnnotation({ annotations }: { annotations: string }): EchoAnnotation | undefined {
  // Most turns have no such annotation, so parsing is skipped.
  if (!annotations.includes('"echo"')) return undefined
  return (JSON.parse(annotations) as { echo?: EchoAnnotation }).echo
}

/** The messages that were searched. A message is part of many requests. */
const searched = new SideTable<Message, true>()

/**
 * Returns the tool-call ids in new messages that a proxy generated, but for no turn that is cached. Each message is
 * searched once, so its ids must be known to `ids` unless they belong to no turn: see {@link hasUnknownIds}.
 */
export function findUnknownIds(last: Message | undefined, ids: ToolCallIds): string[] {
  const added = listUnsearched(last)
  const unknown = listStrayIds(added, ids)
  for (const message of added) searched.attach(message, true)
  return unknown
}

/** Returns whether {@link findUnknownIds} would find any. The messages stay new. */
export function hasUnknownIds(last: Message | undefined, ids: ToolCallIds): boolean {
  return listStrayIds(listUnsearched(last), ids).length > 0
}

function listUnsearched(last: Message | undefined): Message[] {
  return getMessagesBetween(undefined, last, (message) => searched.get(message) === true)
}

function listStrayIds(messages: readonly Message[], ids: ToolCallIds): string[] {
  return messages.flatMap(({ value }) => listToolCallIds(value)).filter((id) => ids.isStray(id))
}

function listToolCallIds(message: ChatMessage): string[] {
  if (message.role !== 'assistant' || !Array.isArray(message.tool_calls)) return []
  return message.tool_calls.flatMap(({ id }) => (typeof id === 'string' ? [id] : []))
}
