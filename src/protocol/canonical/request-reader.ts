/**
 * Parses the requests of one session as `JSON.parse` does, except for numbers that prompts show as they were written
 * (see `number-texts.ts`). An agent sends its whole conversation with every request, serialized identically each time:
 * what a list of messages repeats byte for byte from an earlier list is not parsed again, nor is any other large part
 * that repeats. Comparing takes a hundredth of the time.
 *
 * Repeated values are the same objects as before and must not be modified. An element is the same object as before only
 * if everything before it in the list is, too.
 */
import { LruCache } from '../../base/lru-cache.ts'
import { findElements, findStringEnd, LETTERS, skipSpace } from '../json/json-list.ts'
import {
  addWeights,
  isNestedTooDeeply,
  type JsonWeight,
  MAX_NESTING,
  WEIGHTLESS,
  weigh,
} from '../json/json-weight.ts'
import { BytePrefix, DigestPrefix, type VerifiedPrefix } from '../json/verified-prefix.ts'
import {
  keepNumberTexts,
  LIST_FIELDS,
  MAX_NUMBER_LENGTH,
  mayContainNumbersToKeep,
  parseRequest,
} from './number-texts.ts'
import { MAX_PARTS, PartCache, type WeightCounter } from './part-cache.ts'

/**
 * Shorter requests take negligible time to parse. They are read in parts only if a list's JSON is not in canonical
 * form.
 */
const MIN_BYTES = 4 * 1024

/** The text before the list that is forwarded to engines as received. */
const MESSAGES = '"messages":'

/** The measured size of a value in a list, without the bytes of its JSON. */
const NODE_BYTES = 64

/** The number of concurrent conversations of one session: those of an agent and its helpers. */
const MAX_LISTS = 16

/** The content of a request body, and how much of it is new in its session. */
export interface BodyContent {
  readonly value: unknown
  /** The number of objects, lists and members that no earlier request had. */
  readonly newNodes: number
  /** Set for a request that was read in parts. None of them is nested too deeply. */
  readonly list?: ListContent
}

interface ListContent {
  readonly elements: readonly unknown[]
  /** Their JSON as received, separated by commas and without brackets; undefined unless requested. */
  readonly json: Buffer | undefined
}

/** Derives a value from a part of a request, once for all requests that repeat the part. */
export interface PartMemo {
  /**
   * Returns the value that `step` derives from `part`, computing it on the first request only.
   * @param step the same function each time; an error that it throws is not cached
   * @param part an object of the request, or one of few texts
   * @param context further arguments of the step; determined by the part, and for an element by all before it
   */
  computeOnce<Part extends object | string, Context extends unknown[], Made>(
    step: (part: Part, ...context: Context) => Made,
    part: Part,
    ...context: Context
  ): Made
}

/** A memo that stores nothing, for a single request. */
export const NO_MEMO: PartMemo = { computeOnce: (step, part, ...context) => step(part, ...context) }

/** A parsed list of an earlier request, whose elements are reused for a list that begins with the same bytes. */
interface ListCacheEntry {
  readonly elements: readonly unknown[]
  /** A verified prefix that is the JSON of this list. */
  readonly bytes: VerifiedPrefix
  /** The offset of the byte after each element. */
  readonly ends: readonly number[]
  /** The total weight of all elements up to and including each one. */
  readonly weights: readonly JsonWeight[]
}

/** Checks the weight of a request, as far as known, before that part is parsed. It throws if the weight is too high. */
export type WeightCheck = (weight: JsonWeight) => void

/** The values that a step derived from objects or from texts. */
type DerivedValues = Pick<WeakMap<never, unknown>, 'get' | 'set'> | LruCache<never, unknown>

const NOTHING: ListCacheEntry = { elements: [], ends: [], weights: [], bytes: DigestPrefix.NONE }

/** Options for data of a request other than its value. */
export interface RequestReaderOptions {
  /** Whether to return {@link ListContent.json}. Such lists are kept as received; of others only a digest is kept. */
  listJson?: boolean
}

export class RequestReader implements PartMemo {
  /** The lists, the latest first. */
  readonly #lists: ListCacheEntry[] = []
  readonly #parts = new PartCache()
  /** The derived values by step. */
  readonly #made = new Map<unknown, DerivedValues>()
  #parsed = 0
  #steps = 0

  /** Its memory in bytes without {@link valueBytes}: requests as received and the values of their large parts. */
  get bytes(): number {
    return this.#lists.reduce((sum, { bytes }) => sum + bytes.bytes, this.#parts.bytes)
  }

  /** The memory of its lists' elements in bytes. */
  get valueBytes(): number {
    const getBytes = ({ ends, weights }: ListCacheEntry) =>
      (ends.at(-1) ?? 0) + NODE_BYTES * (weights.at(-1)?.nodes ?? 0)
    return this.#lists.reduce((sum, list) => sum + getBytes(list), 0)
  }

  /** The number of list elements parsed so far. */
  get parsed(): number {
    return this.#parsed
  }

  /** The number of derived values computed so far, because they were not cached. */
  get steps(): number {
    return this.#steps
  }

  /**
   * Parses a request.
   * @param json in UTF-8; new bytes are copied, and the buffer itself is not kept
   * @throws SyntaxError, and whatever `admit` throws
   */
  read(json: Buffer, admit: WeightCheck = () => {}, options: RequestReaderOptions = {}): BodyContent {
    const isShort = json.length < MIN_BYTES
    if (isShort && !options.listJson) return readComplete(json, admit)
    const short = isShort && json.includes(`${MESSAGES}[`) ? readAsWritten(json, admit) : undefined
    return short ?? this.#readParts(json, admit, options) ?? readComplete(json, admit)
  }

  computeOnce<Part extends object | string, Context extends unknown[], Made>(
    step: (part: Part, ...context: Context) => Made,
    part: Part,
    ...context: Context
  ): Made {
    const results = this.#getResults(step, part)
    const existing = results.get(part as never)
    if (existing !== undefined) return existing as Made
    this.#steps += 1
    const made = step(part, ...context)
    results.set(part as never, made)
    return made
  }

  #getResults(step: unknown, part: object | string): DerivedValues {
    let results = this.#made.get(step)
    if (results === undefined) {
      results = typeof part === 'string' ? new LruCache(MAX_PARTS, () => 1) : new WeakMap()
      this.#made.set(step, results)
    }
    return results
  }

  /**
   * Parses a request in parts. @returns undefined for text that the whole-text parser must handle, whether valid or not
   */
  #readParts(json: Buffer, admit: WeightCheck, options: RequestReaderOptions): BodyContent | undefined {
    try {
      return this.#readObject(json, admit, options)
    } catch (thrown) {
      if (thrown instanceof SyntaxError) return undefined
      throw thrown
    }
  }

  #readObject(json: Buffer, admit: WeightCheck, options: RequestReaderOptions): BodyContent | undefined {
    const members = new Map<string, unknown>()
    let weight: JsonWeight = { nodes: 1, commas: 0, widest: 0 }
    let newNodes = 0
    const add = (more: JsonWeight, known = WEIGHTLESS) => {
      weight = addWeights(weight, more)
      newNodes += more.nodes - known.nodes
      admit(weight)
    }
    let list: ListCacheEntry | undefined
    let elements: readonly unknown[] = []
    let offset = skipSpace(json, 0)
    if (json[offset] !== LETTERS.object) return undefined
    do {
      const key = skipSpace(json, offset + 1)
      if (json[key] !== LETTERS.quote) return undefined
      const keyEnd = findStringEnd(json, key)
      const colon = skipSpace(json, keyEnd)
      if (json[colon] !== LETTERS.colon) return undefined
      const name: unknown = JSON.parse(json.toString('utf8', key, keyEnd))
      const start = skipSpace(json, colon + 1)
      // For a duplicate field the last value counts, at the position of the first.
      if (typeof name !== 'string' || members.has(name)) return undefined
      add({ nodes: 1, commas: members.size === 0 ? 0 : 1, widest: members.size + 1 })
      if (list === undefined && json[start] === LETTERS.list && LIST_FIELDS.includes(name)) {
        const found = this.#readList(json, start + 1, add, options)
        if (found === undefined) return undefined
        list = found.list
        // A copy: modifying it must not affect later requests.
        elements = [...list.elements]
        members.set(name, elements)
        offset = found.close + 1
      } else {
        const part = this.#parts.read(name, json, start, add)
        if (part === undefined) return undefined
        members.set(name, part.value)
        offset = start + part.length
      }
      offset = skipSpace(json, offset)
    } while (json[offset] === LETTERS.comma)
    const isComplete = json[offset] === LETTERS.objectEnd && skipSpace(json, offset + 1) === json.length
    if (!isComplete || list?.ends.length === 0) return undefined
    const value = Object.fromEntries(members)
    if (list === undefined) return { value, newNodes }
    return { value, newNodes, list: { elements, json: getFullBytes(list, options) } }
  }

  /** Reads a list. @param start offset of the byte after the opening bracket */
  #readList(
    json: Buffer,
    start: number,
    add: WeightCounter,
    options: RequestReaderOptions,
  ): { list: ListCacheEntry; close: number } | undefined {
    const { index, shared, sharedBytes } = this.#findLongestShared(json.subarray(start))
    const goesOn = shared.ends.length > 0
    const from = start + (shared.ends.at(-1) ?? 0)
    const found = findElements(json, from, goesOn)
    if (found === undefined) return undefined
    const ends = [...shared.ends, ...found.ends.map((end) => end - start)]
    if (ends.length > 0) {
      const known = shared.weights.at(-1)
      // Weigh all new bytes at once: a request that is rejected has not been weighed element by element.
      const weight = addWeights(known ?? WEIGHTLESS, weigh(json.subarray(from, found.close)))
      add(addWeights({ nodes: 1, commas: 0, widest: 0 }, weight), known)
    }
    const weights = measureElements(json.subarray(start, found.close), ends, shared.weights)
    const more = json.toString('utf8', from, found.close)
    const added: unknown[] = JSON.parse(`[${goesOn ? more.slice(more.indexOf(',') + 1) : more}]`)
    if (added.length !== found.ends.length || isNestedTooDeeply(added, MAX_NESTING - 1)) return undefined
    if (mayContainNumbersToKeep(more)) {
      let left = MAX_NUMBER_LENGTH
      for (const [position, element] of added.entries()) {
        const before = found.ends[position - 1] ?? from
        left = keepNumberTexts(element, readElementText(json, before, found.ends[position]!), left)
      }
    }
    this.#parsed += added.length
    const list = {
      elements: [...shared.elements, ...added],
      ends,
      weights,
      bytes: verifyPrefix(
        shared.bytes,
        json.subarray(start, start + (ends.at(-1) ?? 0)),
        sharedBytes,
        options,
      ),
    }
    this.#remember(list, index, shared)
    return { list, close: found.close }
  }

  /**
   * Returns the known list with the longest common prefix, what the two share, and a lower bound of the common bytes.
   * @param json from the first byte of the list's content on
   */
  #findLongestShared(json: Buffer): {
    index: number
    shared: ListCacheEntry
    sharedBytes: number
  } {
    let best = { index: -1, count: 0, sharedBytes: 0 }
    for (const [index, { bytes, ends }] of this.#lists.entries()) {
      const sharedBytes = bytes.measureShared(json)
      const count =
        sharedBytes === bytes.length ? ends.length : ends.findLastIndex((end) => end <= sharedBytes) + 1
      if (count > best.count) best = { index, count, sharedBytes }
      // The known list matches completely: a search for a longer match is not worth the time.
      if (sharedBytes === bytes.length) break
    }
    const { index, count, sharedBytes } = best
    if (count === 0) return { index, shared: NOTHING, sharedBytes: 0 }
    const { bytes, ends, weights, elements } = this.#lists[index]!
    const first = <Each>(all: readonly Each[]) => all.slice(0, count)
    const shared = { bytes, ends: first(ends), weights: first(weights), elements: first(elements) }
    return { index, shared, sharedBytes }
  }

  /**
   * Replaces the list that this one extends. A list that shares less than half of another one is a separate
   * conversation.
   */
  #remember(list: ListCacheEntry, index: number, shared: ListCacheEntry): void {
    if (list.ends.length === 0) return
    const before = this.#lists[index]
    if (before && shared.ends.length * 2 >= before.ends.length) this.#lists.splice(index, 1)
    this.#lists.unshift(list)
    this.#lists.length = Math.min(this.#lists.length, MAX_LISTS)
  }
}

function readComplete(json: Buffer, admit: WeightCheck, text = json.toString()): BodyContent {
  const weight = weigh(json)
  admit(weight)
  return { value: parseRequest(text), newNodes: weight.nodes }
}

/**
 * Reads a request as a whole, with its list of messages if that JSON is what JSON.stringify writes, as most clients'
 * is.
 */
function readAsWritten(json: Buffer, admit: WeightCheck): BodyContent | undefined {
  const text = json.toString()
  const read = readComplete(json, admit, text)
  const { value } = read
  const elements = (value as { messages?: unknown } | null)?.messages
  if (!Array.isArray(elements) || elements.length === 0 || isNestedTooDeeply(value)) return undefined
  const list = JSON.stringify(elements)
  const offset = text.indexOf(MESSAGES)
  const isSame = text.startsWith(list, offset + MESSAGES.length) && text.lastIndexOf(MESSAGES) === offset
  return isSame ? { ...read, list: { elements, json: Buffer.from(list.slice(1, -1)) } } : undefined
}

/** @param sharedBytes lower bound of the number of bytes of the list that are known */
function verifyPrefix(
  known: VerifiedPrefix,
  list: Buffer,
  sharedBytes: number,
  { listJson }: RequestReaderOptions,
): VerifiedPrefix {
  const isAsRequested = known instanceof BytePrefix === (listJson === true)
  if (isAsRequested) return known.extendTo(list, Math.min(sharedBytes, list.length))
  return listJson === true ? BytePrefix.of(list) : DigestPrefix.of(list)
}

function getFullBytes({ bytes }: ListCacheEntry, { listJson }: RequestReaderOptions): Buffer | undefined {
  return listJson === true && bytes instanceof BytePrefix ? bytes.whole : undefined
}

/** @param known weights of the first elements */
function measureElements(list: Buffer, ends: readonly number[], known: readonly JsonWeight[]): JsonWeight[] {
  const weights = [...known]
  for (let index = weights.length; index < ends.length; index += 1) {
    const element = weigh(list.subarray(ends[index - 1] ?? 0, ends[index]))
    weights.push(addWeights(element, weights.at(-1) ?? WEIGHTLESS))
  }
  return weights
}

/** @param from offset of the byte after the previous element, or after the opening bracket */
function readElementText(json: Buffer, from: number, to: number): string {
  const text = json.toString('utf8', from, to)
  return text.trimStart().replace(/^,/, '')
}
