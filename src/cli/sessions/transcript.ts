/**
 * Formats the transcript of a session for a terminal. No recorded text can move the cursor or imitate a line of this
 * program.
 */
import { styleText } from 'node:util'
import { type DiffLine, diffLines } from '../../protocol/transcript/diff-lines.ts'
import {
  getContentText,
  getImages,
  getNewMessages,
  type MessageWire,
} from '../../protocol/transcript/messages.ts'
import { describeMissingText } from '../../protocol/transcript/missing-text.ts'
import { getSettings } from '../../protocol/transcript/settings.ts'
import { ToolCallReader, type ToolCallView, type ToolCallWire } from '../../protocol/transcript/tool-calls.ts'
import { isBlank, revealInvisible } from '../../protocol/transcript/visible.ts'
import { formatNumber, toPrintable } from '../table.ts'
import type { TreeJson, TurnDisplayJson } from './api.ts'

/** The limits of a text without `full`. */
const MAX_LINES = 40
const MAX_CHARS = 4_000

type NewRowJson = NonNullable<TreeJson['turns'][number]['new_row']>
type Style = Parameters<typeof styleText>[0]

const applyStyle = (style: Style, text: string) => styleText(style, text, { stream: process.stdout })

/** Yields the lines of a transcript. @param full whether to show complete texts, and tools with their descriptions */
export function* formatTranscript(
  tree: TreeJson,
  turns: readonly TurnDisplayJson[],
  full: boolean,
): Generator<string> {
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]))
  const newRows = new Map(tree.turns.map(({ index, new_row }) => [index, new_row]))
  const reader = new ToolCallReader()
  let settingsBefore = ''
  for (const turn of turns) {
    yield formatHeading(turn, tree.reward_turns[turn.index])
    if (turn.note !== null) yield* truncateText(`note: ${turn.note}`, full, '  ', 'yellow')
    const settings = [...formatSettingsLines(turn, full)].join('\n')
    if (settings !== settingsBefore && settings !== '') yield settings
    settingsBefore = settings
    const begins = newRows.get(turn.index)
    if (begins) yield* formatNewRowLines(begins, full)
    const { from, echoOf, messages } = getNewMessages(turn, byId.get(turn.request_messages_of ?? ''))
    if (from > 0)
      yield applyStyle(
        'dim',
        `  … ${formatCount(from, 'earlier message')}${describeEcho(echoOf)} not repeated`,
      )
    const read = (calls: readonly unknown[]) => calls.map((call) => reader.read(call as ToolCallWire))
    for (const message of messages) yield* formatMessageLines(message, read(message.tool_calls ?? []), full)
    yield* formatResponseLines(turn, read(turn.tool_calls), full)
  }
}

function* formatNewRowLines({ text, changes }: NewRowJson, full: boolean): Generator<string> {
  yield applyStyle('yellow', `  a new row: ${toPrintable(text)}`)
  for (const { what, before, now } of changes) {
    yield `    ${applyStyle('dim', `${toPrintable(what)}:`)}`
    yield* formatDifferenceLines(diffLines(before ?? '', now ?? ''), full)
  }
}

function describeEcho(turn: number | undefined): string {
  return turn === undefined ? '' : ` and the completion of turn ${turn}`
}

function formatHeading(turn: TurnDisplayJson, reward: number | undefined): string {
  const facts = [
    turn.agent_role,
    turn.model,
    turn.finish_reason ?? turn.status,
    turn.latency_ms === null ? null : `${turn.latency_ms} ms`,
    reward === undefined ? null : `reward ${formatNumber(reward)}`,
    turn.exact || turn.status !== 'completed' ? null : 'inexact',
    ...turn.labels,
  ]
  const known = facts.filter((fact) => fact !== null).map((fact) => toPrintable(fact))
  return `\n${applyStyle('bold', `── turn ${turn.index}`)}${applyStyle('dim', ` · ${known.join(' · ')}`)}`
}

function* formatSettingsLines(turn: TurnDisplayJson, full: boolean): Generator<string> {
  const { params, tools } = getSettings(turn)
  if (params.length > 0)
    yield* truncateText(params.map(([name, value]) => `${name} ${value}`).join(', '), full, '  ', 'dim')
  if (tools.length === 0) return
  if (!full)
    return yield* truncateText(`tools: ${tools.map(({ name }) => name).join(', ')}`, full, '  ', 'dim')
  for (const { name, description } of tools)
    yield* truncateText(`tool ${name}: ${description}`, full, '  ', 'dim')
}

function* formatMessageLines(
  message: MessageWire,
  calls: readonly ToolCallView[],
  full: boolean,
): Generator<string> {
  const { role = '?', name, reasoning_content: reasoning, content } = message
  yield applyStyle('cyan', toPrintable(role === 'tool' && name ? `tool ${name}` : role))
  if (reasoning) yield* formatReasoningLines(reasoning, full)
  const text = getContentText(content)
  if (!isBlank(text)) yield* truncateText(text, full, '  ')
  for (const image of getImages(content)) yield `  [image, ${image.length} characters of base64]`
  for (const call of calls) yield* formatToolCallLines(call, full)
}

function* formatResponseLines(
  turn: TurnDisplayJson,
  calls: readonly ToolCallView[],
  full: boolean,
): Generator<string> {
  yield applyStyle('green', 'sampled')
  if (turn.reasoning_content) yield* formatReasoningLines(turn.reasoning_content, full)
  if (!isBlank(turn.completion_text)) yield* truncateText(turn.completion_text, full, '  ')
  for (const call of calls) yield* formatToolCallLines(call, full)
  const missing = calls.length > 0 || turn.error !== null ? undefined : describeMissingText(turn)
  if (missing !== undefined) yield* truncateText(missing, full, '  ', 'dim')
  if (turn.error !== null) yield* truncateText(`${turn.error.code}: ${turn.error.message}`, full, '  ', 'red')
  if (turn.inexact_reason !== null) yield* truncateText(turn.inexact_reason, full, '  ', 'yellow')
}

/** Yields reasoning with a label, because without colours it would look like the text after it. */
function* formatReasoningLines(text: string, full: boolean): Generator<string> {
  yield applyStyle('dim', '  reasoning:')
  yield* truncateText(text, full, '    ', 'dim')
}

function* formatToolCallLines({ name, fields }: ToolCallView, full: boolean): Generator<string> {
  yield `  ${applyStyle(['bold', 'magenta'], toPrintable(name))}`
  for (const field of fields) {
    const label = field.name === '' ? '' : `${toPrintable(field.name)}: `
    if ('text' in field && label.length + field.text.length < 100 && !field.text.includes('\n')) {
      yield `    ${applyStyle('dim', label)}${revealInvisible(field.text)}`
      continue
    }
    if (label !== '') yield `    ${applyStyle('dim', label.trimEnd())}`
    if ('text' in field) yield* truncateText(field.text, full, '      ')
    else yield* formatDifferenceLines(field.diff, full)
  }
}

const MARKS = { same: ' ', added: '+', removed: '-', place: '' }
const COLOURS = { added: 'green', removed: 'red', place: 'dim' } as const

function* formatDifferenceLines(lines: readonly DiffLine[], full: boolean): Generator<string> {
  const shown = full ? lines : lines.slice(0, MAX_LINES)
  for (const { kind, text } of shown) {
    const line = revealInvisible(`${MARKS[kind]}${full ? text : text.slice(0, MAX_CHARS)}`)
    yield `      ${kind === 'same' ? line : applyStyle(COLOURS[kind], line)}`
  }
  yield* formatOmitted(lines.length - shown.length, '      ')
}

/** Yields the lines of a text; without `full` only its beginning and the size of the rest. */
function* truncateText(text: string, full: boolean, indent: string, style?: Style): Generator<string> {
  const lines = (full ? text : text.slice(0, MAX_CHARS)).split('\n')
  const shown = full ? lines : lines.slice(0, MAX_LINES)
  for (const line of shown)
    yield line === ''
      ? ''
      : `${indent}${style ? applyStyle(style, revealInvisible(line)) : revealInvisible(line)}`
  const length = shown.reduce((sum, line) => sum + line.length + 1, -1)
  yield* formatOmitted(text.length - length, indent, 'character')
}

function* formatOmitted(count: number, indent: string, what = 'line'): Generator<string> {
  if (count > 0)
    yield applyStyle('dim', `${indent}… ${formatCount(count, `more ${what}`)} (--full shows them)`)
}

function formatCount(count: number, what: string): string {
  return `${count} ${what}${count === 1 ? '' : 's'}`
}
