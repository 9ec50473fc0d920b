/**
 * Large parts of a session's requests besides its list: system prompts, tools, a body in a body. One that comes again byte
 * for byte is not parsed again.
 */
import { findValueEnd } from '../json/json-list.ts'
import { type JsonWeight, weigh } from '../json/json-weight.ts'
import { isNestedTooDeeply, MAX_NESTING } from '../json/nesting.ts'
import { computeSecretTag } from '../json/secret-tag.ts'
import { parseBody, parseKeepingNumbers, TEMPLATE_FIELDS } from './number-texts.ts'

/** What templates show, and with it each number as it was written. */
const WRITTEN_FIELDS: readonly string[] = ['tools', ...TEMPLATE_FIELDS]

/** Shorter texts are parsed in no time. */
const MIN_TEXT_BYTES = 256

/** Longer parts are known by their tags. */
const MIN_TAGGED_BYTES = 4 * 1024

/** Of a part besides its JSON and its value. */
const PART_BYTES = 300

/** An agent may send ever new ones. */
const MAX_FIELDS = 64

/** Values that one field has by turns: each conversation has a system prompt and tools of its own. */
export const MAX_PARTS = 16

/** The long texts that have turns. Any other one is a prompt, which comes again only if the whole call does. */
const REPEATED_TEXTS: readonly string[] = ['system', 'instructions']

interface PartValue {
  readonly value: unknown
  readonly weight: JsonWeight
  /** Of its JSON. */
  readonly length: number
}

/** A part that has been read, and what its JSON is known by. */
interface PartEntry extends PartValue {
  /** Of a short one, which is compared sooner than its tag is made. */
  readonly json: Buffer | undefined
  readonly tag: string
}

/** @param known of `more`, what has been read before */
export type AddWeight = (more: JsonWeight, known?: JsonWeight) => void

export class PartCache {
  /** By the name of their field, the latest first. */
  readonly #parts = new Map<string, PartEntry[]>()
  #bytes = 0

  /** What it keeps in memory: the values of the parts, with what is made of them. */
  get bytes(): number {
    return this.#bytes
  }

  /** @returns undefined if it is nested too deeply */
  read(name: string, json: Buffer, start: number, add: AddWeight): PartValue | undefined {
    const parts = this.#parts.get(name) ?? []
    const place = parts.findIndex((part) => isSame(part, json.subarray(start, start + part.length)))
    if (place !== -1) {
      const [known] = parts.splice(place, 1)
      parts.unshift(known!)
      add(known!.weight, known!.weight)
      return known
    }
    const parse =
      name === 'body' ? parseBody : WRITTEN_FIELDS.includes(name) ? parseKeepingNumbers : JSON.parse
    const bytes = json.subarray(start, findValueEnd(json, start))
    const part = parsePart(bytes, parse, add)
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

/** Objects always: whatever is made of one is made once. */
function isCacheable({ length, value }: PartValue): boolean {
  return typeof value === 'string' ? length >= MIN_TEXT_BYTES : typeof value === 'object' && value !== null
}

/** With a copy of its bytes, if any: the rest of the request is not kept for it. */
function createEntry(part: PartValue, json: Buffer): PartEntry {
  const isShort = json.length < MIN_TAGGED_BYTES
  return { ...part, json: isShort ? copyBytes(json) : undefined, tag: isShort ? '' : computeSecretTag(json) }
}

function isSame({ json, length, tag }: PartEntry, bytes: Buffer): boolean {
  return json === undefined ? bytes.length === length && computeSecretTag(bytes) === tag : bytes.equals(json)
}

/** What a part keeps in memory with its value, and with the text that is made of it for the record, more or less. */
function getByteSize({ json, length }: PartEntry): number {
  return PART_BYTES + 2 * length + (json?.length ?? 0)
}

function parsePart(json: Buffer, parse: (text: string) => unknown, add: AddWeight): PartValue {
  const weight = weigh(json)
  add(weight)
  return { weight, length: json.length, value: parse(json.toString()) }
}

/** Never cut from a larger buffer, as `Buffer.from` does. */
function copyBytes(json: Buffer): Buffer {
  const copy = Buffer.allocUnsafeSlow(json.length)
  json.copy(copy)
  return copy
}
