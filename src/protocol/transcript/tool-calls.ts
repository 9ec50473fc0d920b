/** Formats tool calls for people: arguments by name, texts by line, edits as diffs. */
import { type DiffLine, diffLines, patchLines } from './diff-lines.ts'

/** A tool call in a message or in a recorded turn. */
export interface ToolCallWire {
  id?: string
  function?: { name?: string; arguments?: unknown }
}

/** A named argument of a tool call: a text or a diff. */
export type ToolCallField = { name: string } & ({ text: string } | { diff: readonly DiffLine[] })

export interface ToolCallView {
  name: string
  /** The arguments; one field without a name if they are not a JSON object. */
  fields: readonly ToolCallField[]
}

/** The names that agents' tools use for the old and the new text of an edit. */
const EDITS = [
  ['old_string', 'new_string'],
  ['old_str', 'new_str'],
  ['oldText', 'newText'],
  ['oldString', 'newString'],
] as const

/** Members nested deeper than this are shown as JSON. */
const MAX_DEPTH = 4

/**
 * A reader of the tool calls of a session, in order: a file that is written again is shown as a diff. Sub-agents work
 * on the same files as their session, so one reader serves all of them.
 */
export class ToolCallReader {
  /** The content of files by path, as far as it follows from the tool calls. */
  readonly #files = new Map<string, string>()

  read({ function: of }: ToolCallWire): ToolCallView {
    const { name = '?', arguments: input = '' } = of ?? {}
    const fields = parseFields(input)
    if (fields === undefined) {
      const text = typeof input === 'string' ? input : JSON.stringify(input)
      return { name, fields: [createTextField('', text)] }
    }
    const written = findFileWrite(fields)
    const before = written && this.#files.get(written.path)
    this.#updateFiles(fields, written)
    if (written === undefined || before === undefined)
      return { name, fields: toToolCallFields('', fields, 0) }
    const { [written.member]: _content, ...others } = fields
    const diff = diffLines(before, written.content)
    return { name, fields: [...toToolCallFields('', others, 0), { name: written.member, diff }] }
  }

  /** Updates the content of the file that a tool call writes or edits. */
  #updateFiles(fields: Fields, written: FileWrite | undefined): void {
    const path = findPath(fields)
    if (path === undefined) return
    if (written !== undefined) return void this.#files.set(path, written.content)
    const pair = findEditPair(fields)
    const existing = this.#files.get(path)
    if (existing === undefined || pair === undefined) return
    const [old, now] = pair.map((member) => fields[member] as string)
    // Discard the content if the edit does not match it: the edit may have failed, or the file changed otherwise.
    if (!existing.includes(old!)) this.#files.delete(path)
    else
      this.#files.set(
        path,
        existing.replace(old!, () => now!),
      )
  }
}

type Fields = Readonly<Record<string, unknown>>

function parseFields(input: unknown): Fields | undefined {
  try {
    const value: unknown = typeof input === 'string' ? JSON.parse(input) : input
    return isObject(value) ? value : undefined
  } catch {
    return undefined
  }
}

function isObject(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

interface FileWrite {
  path: string
  /** The name of the argument with the content. */
  member: string
  content: string
}

const CONTENTS = ['content', 'contents', 'file_text']

/** Returns the file write that a tool call's fields describe: a path and the complete content. */
function findFileWrite(fields: Fields): FileWrite | undefined {
  const path = findPath(fields)
  const member = CONTENTS.find((name) => typeof fields[name] === 'string')
  if (path === undefined || member === undefined) return undefined
  return { path, member, content: fields[member] as string }
}

function findPath(fields: Fields): string | undefined {
  const path = fields.file_path ?? fields.filePath ?? fields.path
  return typeof path === 'string' ? path : undefined
}

function findEditPair(fields: Fields): readonly [string, string] | undefined {
  return EDITS.find(([old, now]) => typeof fields[old] === 'string' && typeof fields[now] === 'string')
}

function toToolCallFields(path: string, fields: Fields, depth: number): ToolCallField[] {
  const pair = findEditPair(fields)
  const getName = (name: string) => (path === '' ? name : `${path}.${name}`)
  const others = Object.entries(fields).filter(([name]) => !pair?.includes(name))
  const own = others.flatMap(([name, value]) => splitValue(getName(name), value, depth))
  if (pair === undefined) return own
  const [old, now] = pair
  const diff = diffLines(fields[old] as string, fields[now] as string)
  return [...own, { name: `${getName(old)} → ${now}`, diff }]
}

/**
 * Returns the fields of a value. A value that is hard to read as JSON, with texts of several lines or edits, is split
 * into its members.
 */
function splitValue(name: string, value: unknown, depth: number): ToolCallField[] {
  if (typeof value === 'string') return [createTextField(name, value)]
  const json = JSON.stringify(value, null, 2)
  const isHardToRead = json.includes('\\n') || EDITS.some(([old]) => json.includes(`"${old}"`))
  if (!isHardToRead || depth >= MAX_DEPTH) return [{ name, text: json }]
  if (Array.isArray(value))
    return value.flatMap((item, index) => splitValue(`${name}[${index}]`, item, depth + 1))
  return isObject(value) ? toToolCallFields(name, value, depth + 1) : [{ name, text: json }]
}

function createTextField(name: string, text: string): ToolCallField {
  const diff = patchLines(text)
  return diff === undefined ? { name, text } : { name, diff }
}

/** The names of the arguments that describe a tool call best, in order of preference. */
const DESCRIPTIVE_ARGUMENTS = [
  'command',
  'cmd',
  'file_path',
  'filePath',
  'path',
  'pattern',
  'query',
  'url',
  'description',
]

/** Returns the name of a tool call and the first line of its most descriptive argument. */
export function summarizeToolCall({ function: of }: ToolCallWire): { name: string; about: string } {
  const { name = '?', arguments: input = '' } = of ?? {}
  const fields = parseFields(input)
  const texts = Object.entries(fields ?? { command: input }).filter(([, value]) => typeof value === 'string')
  const telling = DESCRIPTIVE_ARGUMENTS.find((member) => texts.some(([own]) => own === member))
  const [, text = ''] = texts.find(([own]) => own === telling) ?? texts[0] ?? []
  return { name, about: (text as string).split('\n', 1)[0]! }
}
