/**
 * A cache of the large parts of a session's requests other than the list of messages: system prompts, tools, the `body`
 * of a request to a worker. A part that repeats byte for byte is not parsed again.
 */
import { findValueEnd } from '../json/json-list.ts'
import { isNestedTooDeeply, type JsonWeight, MAX_NESTING, weigh } from '../json/json-weight.ts'
import { computeSecretTag } from '../json/secret-tag.ts'
import {
  INTEGER_FIELDS,
  parseBody,
  parseKeepingIntegers,
  parseKeepingNumbers,
  TEMPLATE_FIELDS,
} from './number-texts.ts'

/** The fields that templates render, in which each number is kept as written. */
const WRITTEN_FIELDS: readonly string[] = ['tools', ...TEMPLATE_FIELDS]

/** Shorter texts take negligible time to parse. */
const MIN_TEXT_BYTES = 256

/** Parts of this size or longer are identified by their tags. */
const MIN_TAGGED_BYTES = 4 * 1024

/** The size of a cache entry in bytes, without its JSON and its value. */
const PART_BYTES = 300

/** The maximum number of cached fields, for agents that send other fields with each request. */
const MAX_FIELDS = 64

/** The maximum number of values cached for one field: each conversation has its own system prompt and tools. */
export const MAX_PARTS = 16

/**
 * The fields of which several long texts are cached, because they alternate between conversations. A long text in any
 * other field is a prompt, which repeats only if the complete request does.
 */
const REPEATED_TEXTS: readonly string[] = ['system', 'instructions']

/** A parsed part of a request. */
interface PartValue {
  readonly value: unknown
  readonly weight: JsonWeight
  /** Length of its JSON in bytes. */
  readonly length: number
}

/** A part that has been parsed, and the data that identifies its JSON. */
interface PartEntry extends PartValue {
  /** Set for short parts only: comparing them is faster than computing a tag. */
  readonly json: Buffer | undefined
  readonly tag: string
}

/**
 * A function that adds to the weight of a request.
 * @param known the portion of `more` that earlier requests already contained
 */
export type WeightCounter = (more: JsonWeight, known?: JsonWeight) => void

export class PartCache {
  /** The parts by field name, the latest first. */
  readonly #parts = new Map<string, PartEntry[]>()
  #bytes = 0

  /** The approximate memory of the parts in bytes. */
  get bytes(): number {
    return this.#bytes
  }

  /** Parses a part, or returns it from the cache. @returns undefined if it is nested too deeply */
  read(name: string, json: Buffer, start: number, add: WeightCounter): PartValue | undefined {
    const parts = this.#parts.get(name) ?? []
    const index = parts.findIndex((part) => isSame(part, json.subarray(start, start + part.length)))
    if (index !== -1) {
      const [known] = parts.splice(index, 1)
      parts.unshift(known!)
      add(known!.weight, known!.weight)
      return known
    }
    const bytes = json.subarray(start, findValueEnd(json, start))
    const part = parsePart(bytes, getParser(name), add)
    if (isNestedTooDeeply(part.value, MAX_NESTING - 1)) return undefined
    if (isCacheable(part)) this.#keep(name, parts, createEntry(part, bytes))
    return part
  }

  #keep(name: string, parts: PartEntry[], part: PartEntry): void {
    if (!this.#parts.has(name) && this.#parts.size >= MAX_FIELDS) return
    parts.unshift(part)
    this.#bytes += getByteSize(part)
    const isPrompt = typeof part.value === 'string' && !REPEATED_TEXTS.includes(name)
    if (parts.length > (isPrompt ? 1 : MAX_PARTS)) this.#bytes -= getByteSize(parts.pop()!)
    this.#parts.set(name, parts)
  }
}

function getParser(field: string): (text: string) => unknown {
  if (field === 'body') return parseBody
  if (WRITTEN_FIELDS.includes(field)) return parseKeepingNumbers
  return INTEGER_FIELDS.includes(field) ? parseKeepingIntegers : JSON.parse
}

/** Returns whether a part is cached. Objects always are, so that values derived from them are computed once. */
function isCacheable({ length, value }: PartValue): boolean {
  return typeof value === 'string' ? length >= MIN_TEXT_BYTES : typeof value === 'object' && value !== null
}

/**
 * Creates an entry. The bytes of a short part are copied, so that the entry does not keep the complete request in
 * memory.
 */
function createEntry(part: PartValue, json: Buffer): PartEntry {
  const isShort = json.length < MIN_TAGGED_BYTES
  return { ...part, json: isShort ? copyBytes(json) : undefined, tag: isShort ? '' : computeSecretTag(json) }
}

function isSame({ json, length, tag }: PartEntry, bytes: Buffer): boolean {
  return json === undefined ? bytes.length === length && computeSecretTag(bytes) === tag : bytes.equals(json)
}

/** Returns the approximate memory of a part: its value and the text that is serialized from it for the store. */
function getByteSize({ json, length }: PartEntry): number {
  return PART_BYTES + 2 * length + (json?.length ?? 0)
}

function parsePart(json: Buffer, parse: (text: string) => unknown, add: WeightCounter): PartValue {
  const weight = weigh(json)
  add(weight)
  return { weight, length: json.length, value: parse(json.toString()) }
}

/** Copies bytes into a separate buffer. `Buffer.from` may allocate from a larger, shared one. */
function copyBytes(json: Buffer): Buffer {
  const copy = Buffer.allocUnsafeSlow(json.length)
  json.copy(copy)
  return copy
}
