/** Tool calls as people read them: arguments by their names, texts with their lines, edits as differences. */
import { type DiffLine, diffLines, patchLines } from './diff-lines.ts'

/** A call as it stands in a message or in a recorded turn. */
export interface ToolCallWire {
  id?: string
  function?: { name?: string; arguments?: unknown }
}

/** What a call says under one name: a text, or a difference. */
export type ToolCallField = { name: string } & ({ text: string } | { diff: readonly DiffLine[] })

export interface ToolCallView {
  name: string
  /** Of arguments that are no JSON object one field without a name. */
  fields: readonly ToolCallField[]
}

/** The old text of an edit and the new one, by the names that agents' tools have for them. */
const EDITS = [
  ['old_string', 'new_string'],
  ['old_str', 'new_str'],
  ['oldText', 'newText'],
  ['oldString', 'newString'],
] as const

/** Members deeper than this stand as JSON. */
const MAX_DEPTH = 4

/**
 * Reads the calls of a session in call order: a file that is written again is shown as what changes in it.
 * Sub-agents work on the same files as their session, so that one reader serves all of them.
 */
export class ToolCallReader {
  /** By path, as far as calls alone tell what is in it. */
  readonly #files = new Map<string, string>()

  read({ function: of }: ToolCallWire): ToolCallView {
    const { name = '?', arguments: given = '' } = of ?? {}
    const fields = parseFields(given)
    if (fields === undefined) {
      const text = typeof given === 'string' ? given : JSON.stringify(given)
      return { name, fields: [textField('', text)] }
    }
    const written = findFileWrite(fields)
    const before = written && this.#files.get(written.path)
    this.#learn(fields, written)
    if (written === undefined || before === undefined)
      return { name, fields: toToolCallFields('', fields, 0) }
    const { [written.member]: _content, ...others } = fields
    const diff = diffLines(before, written.content)
    return { name, fields: [...toToolCallFields('', others, 0), { name: written.member, diff }] }
  }

  #learn(fields: Fields, written: FileWrite | undefined): void {
    const path = findPath(fields)
    if (path === undefined) return
    if (written !== undefined) return void this.#files.set(path, written.content)
    const pair = editPair(fields)
    const known = this.#files.get(path)
    if (known === undefined || pair === undefined) return
    const [old, now] = pair.map((member) => fields[member] as string)
    // Not where an edit does: it may have failed, or the file is not what was written.
    if (!known.includes(old!)) this.#files.delete(path)
    else
      this.#files.set(
        path,
        known.replace(old!, () => now!),
      )
  }
}

type Fields = Readonly<Record<string, unknown>>

function parseFields(given: unknown): Fields | undefined {
  try {
    const value: unknown = typeof given === 'string' ? JSON.parse(given) : given
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
  /** The member that has the content. */
  member: string
  content: string
}

const CONTENTS = ['content', 'contents', 'file_text']

/** A call that writes a whole file names its path and what is to be in it. */
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

function editPair(fields: Fields): readonly [string, string] | undefined {
  return EDITS.find(([old, now]) => typeof fields[old] === 'string' && typeof fields[now] === 'string')
}

function toToolCallFields(path: string, fields: Fields, depth: number): ToolCallField[] {
  const pair = editPair(fields)
  const nameOf = (name: string) => (path === '' ? name : `${path}.${name}`)
  const others = Object.entries(fields).filter(([name]) => !pair?.includes(name))
  const own = others.flatMap(([name, value]) => fieldsFor(nameOf(name), value, depth))
  if (pair === undefined) return own
  const [old, now] = pair
  const diff = diffLines(fields[old] as string, fields[now] as string)
  return [...own, { name: `${nameOf(old)} → ${now}`, diff }]
}

/** What would be hard to read as JSON is taken apart: texts of several lines, and edits. */
function fieldsFor(name: string, value: unknown, depth: number): ToolCallField[] {
  if (typeof value === 'string') return [textField(name, value)]
  const json = JSON.stringify(value, null, 2)
  const isHard = json.includes('\\n') || EDITS.some(([old]) => json.includes(`"${old}"`))
  if (!isHard || depth >= MAX_DEPTH) return [{ name, text: json }]
  if (Array.isArray(value))
    return value.flatMap((item, place) => fieldsFor(`${name}[${place}]`, item, depth + 1))
  return isObject(value) ? toToolCallFields(name, value, depth + 1) : [{ name, text: json }]
}

function textField(name: string, text: string): ToolCallField {
  const diff = patchLines(text)
  return diff === undefined ? { name, text } : { name, diff }
}

/** What a call is about, in this order. */
const TELLING = ['command', 'cmd', 'file_path', 'filePath', 'path', 'pattern', 'query', 'url', 'description']

/** The name of a call and the first line of what tells most of it. */
export function summarizeToolCall({ function: of }: ToolCallWire): { name: string; about: string } {
  const { name = '?', arguments: given = '' } = of ?? {}
  const fields = parseFields(given)
  const texts = Object.entries(fields ?? { command: given }).filter(([, value]) => typeof value === 'string')
  const telling = TELLING.find((member) => texts.some(([own]) => own === member))
  const [, text = ''] = texts.find(([own]) => own === telling) ?? texts[0] ?? []
  return { name, about: (text as string).split('\n', 1)[0]! }
}
