/**
 * Verified prefixes determine whether bytes begin with bytes that were read before, because a request or a list of ids
 * usually begins with the previous one. {@link BytePrefix} stores bytes that are needed again; {@link DigestPrefix}
 * stores only digests that verify them.
 */
import { GrowableBuffer } from './growable-json.ts'
import { computeSecretTag } from './secret-tag.ts'

/** An immutable prefix. An extended prefix is a new object that shares memory with it. */
export interface VerifiedPrefix {
  readonly length: number
  /** Its memory in bytes. Memory that several prefixes share counts for each of them. */
  readonly bytes: number
  /**
   * Returns the length of the common prefix with other bytes. A result below the length of this prefix is a lower
   * bound.
   */
  measureShared(others: Buffer): number
  /**
   * Returns a prefix for other bytes, which extends this one if possible. It copies the bytes that it stores.
   * @param shared the result of {@link measureShared}
   */
  extendTo(others: Buffer, shared: number): VerifiedPrefix
}

/** A prefix whose bytes are stored verbatim. */
export class BytePrefix implements VerifiedPrefix {
  readonly length: number
  readonly #bytes: GrowableBuffer

  private constructor(bytes: GrowableBuffer) {
    this.#bytes = bytes
    this.length = bytes.length
  }

  static of(bytes: Buffer): BytePrefix {
    return new BytePrefix(grow(bytes))
  }

  get bytes(): number {
    return this.#bytes.capacity
  }

  /** The bytes, which must not be modified. */
  get contents(): Buffer {
    return this.#bytes.upTo(this.length)
  }

  measureShared(others: Buffer): number {
    return getSharedLength(this.contents, others)
  }

  extendTo(others: Buffer, shared: number): BytePrefix {
    const canAppend = shared === this.length && this.#bytes.length === shared
    if (!canAppend) return BytePrefix.of(others)
    this.#bytes.append(others.subarray(shared))
    return new BytePrefix(this.#bytes)
  }
}

/** The size of the units of a digest prefix. */
const UNIT_BYTES = 16 * 1024

/**
 * The minimum number of bytes at the end that are stored verbatim, because the next text usually differs there; up to
 * one unit more is stored.
 */
const END_BYTES = 16 * 1024

/** The size of a tag as a string with its list entry. */
const TAG_BYTES = 40

/**
 * A prefix identified by the tags of its units, of which only the end is stored verbatim. Comparing takes as long as
 * with the bytes themselves, because one tag covers all units together; the tags of single units are compared only if
 * that tag differs.
 */
export class DigestPrefix implements VerifiedPrefix {
  static readonly NONE = new DigestPrefix([], '', new GrowableBuffer())

  readonly length: number
  /** The tag of each unit. */
  readonly #tags: readonly string[]
  /** The tag of all units together. */
  readonly #allTag: string
  /** The bytes after the units. */
  readonly #end: GrowableBuffer
  readonly #endLength: number

  private constructor(tags: readonly string[], allTag: string, end: GrowableBuffer) {
    this.#tags = tags
    this.#allTag = allTag
    this.#end = end
    this.#endLength = end.length
    this.length = tags.length * UNIT_BYTES + end.length
  }

  static of(bytes: Buffer): DigestPrefix {
    return DigestPrefix.NONE.extendTo(bytes, 0)
  }

  get bytes(): number {
    return this.#tags.length * TAG_BYTES + this.#end.capacity
  }

  measureShared(others: Buffer): number {
    const units = this.#sharedUnits(others)
    const inUnits = units * UNIT_BYTES
    if (units < this.#tags.length) return inUnits
    return inUnits + getSharedLength(this.#end.upTo(this.#endLength), others.subarray(inUnits))
  }

  extendTo(others: Buffer, shared: number): DigestPrefix {
    const units = Math.max(0, Math.ceil((others.length - END_BYTES - UNIT_BYTES) / UNIT_BYTES))
    const known = Math.min(units, this.#tags.length, Math.floor(shared / UNIT_BYTES))
    // The empty prefix NONE is shared, so bytes are never appended to it.
    const canAppend = this.length > 0 && shared === this.length && this.#end.length === this.#endLength
    if (canAppend && units === this.#tags.length) {
      this.#end.append(others.subarray(shared))
      return new DigestPrefix(this.#tags, this.#allTag, this.#end)
    }
    const tags = this.#tags.slice(0, known)
    for (let index = known; index < units; index += 1) tags.push(computeUnitTag(others, index))
    const isSame = units === known && units === this.#tags.length
    const allTag = isSame ? this.#allTag : computeSecretTag(others.subarray(0, units * UNIT_BYTES))
    return new DigestPrefix(tags, allTag, grow(others.subarray(units * UNIT_BYTES)))
  }

  #sharedUnits(others: Buffer): number {
    const count = this.#tags.length
    if (count === 0) return 0
    // The last unit is compared first, because it detects a different conversation with the tag of one unit.
    const mayBeAll =
      others.length >= count * UNIT_BYTES && computeUnitTag(others, count - 1) === this.#tags.at(-1)
    if (mayBeAll && computeSecretTag(others.subarray(0, count * UNIT_BYTES)) === this.#allTag) return count
    let shared = 0
    while (
      others.length >= (shared + 1) * UNIT_BYTES &&
      computeUnitTag(others, shared) === this.#tags[shared]
    ) {
      shared += 1
    }
    return shared
  }
}

function computeUnitTag(bytes: Buffer, unit: number): string {
  return computeSecretTag(bytes.subarray(unit * UNIT_BYTES, (unit + 1) * UNIT_BYTES))
}

function grow(bytes: Buffer): GrowableBuffer {
  const own = new GrowableBuffer()
  own.append(bytes)
  return own
}

/**
 * The size of the blocks that `Buffer.compare` compares before single bytes: prefixes that begin alike differ near
 * their end.
 */
const BLOCK_BYTES = 4 * 1024

/** Returns the length of the common prefix. */
function getSharedLength(left: Buffer, right: Buffer): number {
  const end = Math.min(left.length, right.length)
  const isEqual = (from: number, to: number) => left.compare(right, from, to, from, to) === 0
  if (isEqual(0, end)) return end
  let index = 0
  while (index + BLOCK_BYTES <= end && isEqual(index, index + BLOCK_BYTES)) index += BLOCK_BYTES
  while (left[index] === right[index]) index += 1
  return index
}
