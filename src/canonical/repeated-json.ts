/**
 * Parses requests as `JSON.parse` does. An agent sends its whole conversation with every call, and its client writes it
 * the same way each time: what a list of messages repeats, byte for byte, of the list before it is not parsed again.
 * Comparing takes a hundredth of the time. The repeated messages are the very objects of before, which tells everybody
 * after this that they are known; so nobody may change them.
 */
import { randomUUID } from 'node:crypto'
import { RecentlyUsed } from '../recently-used.ts'
import { findElements, findList } from './json-list.ts'
import { type JsonWeight, together, weigh } from './json-weight.ts'
import { noteSource } from './list-source.ts'

/** Where conversations are: in Chat Completions and Messages, and in Responses. */
const LIST_FIELDS = ['messages', 'input']

/** Shorter requests are parsed in no time. */
const MIN_BYTES = 4 * 1024

/** Of requests, which take as much again for their values: some 100 sessions of 40,000 tokens. */
const MAX_BYTES = 16 * 1024 * 1024

/** Stands in the JSON for the list that was taken out of it. No agent can know it. */
const STAND_IN = randomUUID()

/** The first elements of a list. */
interface Beginning {
  /** The byte after each of them, from the list's first byte on. */
  readonly ends: readonly number[]
  readonly elements: readonly unknown[]
}

/** A request and what it says. */
interface Known extends Beginning {
  readonly field: string
  /** What is before the first element, the elements, and what is from the closing bracket on. */
  readonly head: Buffer
  readonly list: Buffer
  readonly tail: Buffer
  /** Everything but the list, which has the stand-in. */
  readonly root: Readonly<Record<string, unknown>>
  /** Of head and tail, and of the list: counted once, as they are parsed once. */
  readonly rootWeight: JsonWeight
  readonly listWeight: JsonWeight
}

/** Is told what a text weighs before it is parsed, and throws for one that is not to be. */
export type Admit = (weight: JsonWeight) => void

const NOTHING: Beginning = { ends: [], elements: [] }

export class RepeatedJson {
  readonly #known: RecentlyUsed<string, Known>

  constructor(maxBytes = MAX_BYTES) {
    this.#known = new RecentlyUsed(maxBytes, ({ list }) => list.buffer.byteLength)
  }

  /**
   * @param key of the conversation; a wrong one costs time and nothing else
   * @param json in UTF-8; it is kept
   * @throws SyntaxError, and what `admit` throws
   */
  parse(key: string, json: Buffer, admit?: Admit): unknown {
    const known = json.length < MIN_BYTES ? undefined : readKnown(json, this.#known.get(key), admit)
    if (known === undefined) {
      admit?.(weigh(json))
      return JSON.parse(json.toString())
    }
    this.#known.set(key, known)
    const { field, head, elements } = known
    const list = [...elements]
    noteSource(list, json.subarray(head.length - 1, json.length - known.tail.length + 1))
    return { ...known.root, [field]: list }
  }
}

/** @returns undefined for what is to be left to the parser, whether it is JSON or not */
function readKnown(json: Buffer, last: Known | undefined, admit?: Admit): Known | undefined {
  try {
    return read(json, last, admit)
  } catch (thrown) {
    if (thrown instanceof SyntaxError) return undefined
    throw thrown
  }
}

function read(json: Buffer, last: Known | undefined, admit?: Admit): Known | undefined {
  const place =
    last && beginsWith(json, last.head)
      ? { field: last.field, start: last.head.length }
      : findList(json, LIST_FIELDS)
  if (place === undefined) return undefined
  const { field, start } = place
  const beginning = last ? sharedBeginning(json.subarray(start), last) : NOTHING
  const goesOn = beginning.ends.length > 0
  const from = start + (beginning.ends.at(-1) ?? 0)
  const found = findElements(json, from, goesOn)
  if (found === undefined) return undefined
  const [head, list, tail] = [
    json.subarray(0, start),
    json.subarray(start, found.close),
    json.subarray(found.close),
  ]
  const sameRoot = last?.head.equals(head) && last.tail.equals(tail) ? last : undefined
  const extended = goesOn && beginning.ends.length === last?.ends.length ? last : undefined
  const rootWeight = sameRoot?.rootWeight ?? together(weigh(head), weigh(tail))
  const listWeight = extended
    ? together(extended.listWeight, weigh(json.subarray(from, found.close)))
    : weigh(list)
  admit?.(together(rootWeight, listWeight))
  const root = sameRoot ? sameRoot.root : rootOf(head, field, tail)
  const more = json.toString('utf8', from, found.close)
  const added: unknown[] = JSON.parse(`[${goesOn ? more.slice(more.indexOf(',') + 1) : more}]`)
  const ends = [...beginning.ends, ...found.ends.map((end) => end - start)]
  const elements = [...beginning.elements, ...added]
  if (root === undefined || elements.length !== ends.length || ends.length === 0) return undefined
  return { field, head, list, tail, root, rootWeight, listWeight, ends, elements }
}

function beginsWith(json: Buffer, head: Buffer): boolean {
  return json.subarray(0, head.length).equals(head)
}

/** The elements that the two begin with alike. @param json from the first byte of the list on */
function sharedBeginning(json: Buffer, { list, ends, elements }: Known): Beginning {
  const isShared = (from: number, to: number) => list.subarray(from, to).equals(json.subarray(from, to))
  // All of them, as a rule. Otherwise the first one that is not shared is searched for by halves.
  let shared = isShared(0, ends.at(-1)!) ? ends.length : 0
  for (let over = ends.length; shared + 1 < over; ) {
    const middle = (shared + over) >> 1
    if (isShared(ends[shared - 1] ?? 0, ends[middle - 1]!)) shared = middle
    else over = middle
  }
  return { ends: ends.slice(0, shared), elements: elements.slice(0, shared) }
}

/** @returns undefined if the field comes twice, for then it is the other one that counts */
function rootOf(head: Buffer, field: string, tail: Buffer): Known['root'] | undefined {
  const root: Record<string, unknown> = JSON.parse(`${head}"${STAND_IN}"${tail}`)
  const list = root[field]
  return Array.isArray(list) && list[0] === STAND_IN ? root : undefined
}
