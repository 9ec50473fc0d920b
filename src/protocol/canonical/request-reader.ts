/**
 * Parses the requests of one session as `JSON.parse` does, except that numbers in parts that prompts contain are kept
 * as written (see `number-texts.ts`). An agent sends its whole conversation with every request, serialized identically
 * each time: elements of a list of messages that repeat an earlier list byte for byte are not parsed again, nor are
 * other large parts that repeat. Comparing takes a hundredth of the time of parsing.
 *
 * Repeated values are the same objects as before and must not be modified. An element is the same object as before only
 * if everything before it in the list is, too.
 */
import { LruCache } from '../../base/lru-cache.ts'
import { DELIMITERS, findElements, findStringEnd, skipSpace } from '../json/json-list.ts'
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
 * Shorter requests take negligible time to parse. They are read in parts only if the JSON of their list is requested
 * and is not in canonical form.
 */
const MIN_BYTES = 4 * 1024

/** The text before the list that is forwarded to engines as received. */
const MESSAGES = '"messages":'

/** The measured size of a value in a list, without the bytes of its JSON. */
const NODE_BYTES = 64

/**
 * The maximum number of cached lists, one for each concurrent conversation of a session: those of an agent and its
 * sub-agents.
 */
const MAX_LISTS = 16

/** The content of a request body, and how much of it is new in its session. */
export interface BodyContent {
  readonly value: unknown
  /** The number of objects, lists and members that no earlier request had. */
  readonly newNodes: number
  /**
   * The request's list of messages. Absent: there is none, or the request was parsed as a whole without checking its
   * nesting.
   */
  readonly list?: ListContent
}

/** The elements of a list, and their JSON. */
interface ListContent {
  readonly elements: readonly unknown[]
  /** Their JSON as received, separated by commas and without brackets; undefined unless requested. */
  readonly json: Buffer | undefined
}

/** A cache of values derived from parts of requests: each is computed once for all requests that repeat the part. */
export interface PartMemo {
  /**
   * Returns the value that `step` derives from `part`, computing it on the first request only.
   * @param step the same function each time; an error that it throws is not cached
   * @param part an object of the request, or a text from a small set
   * @param context further arguments of the step; equal whenever the part is equal, and, if the part is an element of a
   *   list, whenever the elements before it are equal, too
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

/**
 * A function that checks the weight of a request up to and including a part, before that part is parsed. It throws if
 * the weight is too high.
 */
export type WeightCheck = (weight: JsonWeight) => void

/** The values that a step derived from objects or from texts. */
type DerivedValues = Pick<WeakMap<never, unknown>, 'get' | 'set'> | LruCache<never, unknown>

const EMPTY_LIST: ListCacheEntry = { elements: [], ends: [], weights: [], bytes: DigestPrefix.NONE }

/** Options of {@link RequestReader.read}. */
export interface RequestReaderOptions {
  /**
   * Whether to return {@link ListContent.json}. The JSON of such lists is stored; for others only a digest is stored.
   */
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

  /** Its memory in bytes without {@link valueBytes}: the prefixes that verify lists, and the cached parts. */
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
   * Parses a request in parts.
   * @returns undefined if it must be parsed as a whole, for instance because it is invalid
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
    if (json[offset] !== DELIMITERS.object) return undefined
    do {
      const key = skipSpace(json, offset + 1)
      if (json[key] !== DELIMITERS.quote) return undefined
      const keyEnd = findStringEnd(json, key)
      const colon = skipSpace(json, keyEnd)
      if (json[colon] !== DELIMITERS.colon) return undefined
      const name: unknown = JSON.parse(json.toString('utf8', key, keyEnd))
      const start = skipSpace(json, colon + 1)
      // A duplicate field has its last value at its first position in `JSON.parse`, so the request is parsed as a
      // whole.
      if (typeof name !== 'string' || members.has(name)) return undefined
      add({ nodes: 1, commas: members.size === 0 ? 0 : 1, widest: members.size + 1 })
      if (list === undefined && json[start] === DELIMITERS.list && LIST_FIELDS.includes(name)) {
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
    } while (json[offset] === DELIMITERS.comma)
    const isComplete = json[offset] === DELIMITERS.objectEnd && skipSpace(json, offset + 1) === json.length
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
    const afterElement = shared.ends.length > 0
    const from = start + (shared.ends.at(-1) ?? 0)
    const found = findElements(json, from, afterElement)
    if (found === undefined) return undefined
    const ends = [...shared.ends, ...found.ends.map((end) => end - start)]
    if (ends.length > 0) {
      const known = shared.weights.at(-1)
      // Weighs all new bytes in one pass before the elements, so that a rejected request takes one pass only.
      const weight = addWeights(known ?? WEIGHTLESS, weigh(json.subarray(from, found.close)))
      add(addWeights({ nodes: 1, commas: 0, widest: 0 }, weight), known)
    }
    const weights = measureElements(json.subarray(start, found.close), ends, shared.weights)
    const more = json.toString('utf8', from, found.close)
    const added: unknown[] = JSON.parse(`[${afterElement ? more.slice(more.indexOf(',') + 1) : more}]`)
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
   * Finds the cached list with the longest common prefix.
   * @returns its index, the elements that both lists share, and a lower bound of the number of common bytes
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
      // The search ends at a complete match: a longer one is not worth the time.
      if (sharedBytes === bytes.length) break
    }
    const { index, count, sharedBytes } = best
    if (count === 0) return { index, shared: EMPTY_LIST, sharedBytes: 0 }
    const { bytes, ends, weights, elements } = this.#lists[index]!
    const first = <Each>(all: readonly Each[]) => all.slice(0, count)
    const shared = { bytes, ends: first(ends), weights: first(weights), elements: first(elements) }
    return { index, shared, sharedBytes }
  }

  /**
   * Caches a list, in place of the one that it extends. If it shares less than half of that one, it is a separate
   * conversation, and both are cached.
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
 * Parses a short request as a whole, and returns its list of messages with its JSON.
 * @returns undefined unless the list is serialized as by `JSON.stringify`, as most clients do
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

/**
 * Returns the verified prefix for a list, which extends a known one if possible.
 * @param sharedBytes lower bound of the number of bytes of the list that are known
 */
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
  return listJson === true && bytes instanceof BytePrefix ? bytes.contents : undefined
}

/** Returns the cumulative weights of the elements. @param known the cumulative weights of the first elements */
function measureElements(list: Buffer, ends: readonly number[], known: readonly JsonWeight[]): JsonWeight[] {
  const weights = [...known]
  for (let index = weights.length; index < ends.length; index += 1) {
    const element = weigh(list.subarray(ends[index - 1] ?? 0, ends[index]))
    weights.push(addWeights(element, weights.at(-1) ?? WEIGHTLESS))
  }
  return weights
}

/**
 * Returns the JSON of an element.
 * @param from offset of the byte after the previous element, or after the opening bracket
 */
function readElementText(json: Buffer, from: number, to: number): string {
  const text = json.toString('utf8', from, to)
  return text.trimStart().replace(/^,/, '')
}
