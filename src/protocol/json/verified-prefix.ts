/**
 * Verified prefixes, which determine whether bytes begin with bytes that were read before: a request, or a list of ids,
 * begins with the previous one. {@link BytePrefix} keeps bytes that are needed again; {@link DigestPrefix} keeps only
 * digests that verify them.
 */
import { GrowableBuffer } from './growable-json.ts'
import { computeSecretTag } from './secret-tag.ts'

/** An immutable prefix. An extended prefix is a new object that shares memory with it. */
export interface VerifiedPrefix {
  readonly length: number
  /** Its memory in bytes. Memory that several prefixes share counts for each of them. */
  readonly bytes: number
  /** Returns the length of the common prefix with other bytes; a lower bound unless it is the whole length. */
  measureShared(others: Buffer): number
  /**
   * Returns a prefix for other bytes, which extend this one if possible. It keeps copies only.
   * @param shared the result of {@link measureShared}
   */
  extendTo(others: Buffer, shared: number): VerifiedPrefix
}

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
  get whole(): Buffer {
    return this.#bytes.upTo(this.length)
  }

  measureShared(others: Buffer): number {
    return getSharedLength(this.whole, others)
  }

  extendTo(others: Buffer, shared: number): BytePrefix {
    const goesOn = shared === this.length && this.#bytes.length === shared
    if (!goesOn) return BytePrefix.of(others)
    this.#bytes.append(others.subarray(shared))
    return new BytePrefix(this.#bytes)
  }
}

const UNIT_BYTES = 16 * 1024

/** At the end, where the next bytes may differ, this many bytes are kept verbatim, and up to a unit more. */
const END_BYTES = 16 * 1024

/** The size of a tag as a string with its list entry. */
const TAG_BYTES = 40

/**
 * Identifies bytes by the tags of their units, and keeps only their end verbatim. Comparing takes as long as with the
 * bytes themselves, because one tag covers all units together; only if that one differs are the units compared.
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
    // Never append to the empty prefix: NONE is shared, and the bytes would stay with it.
    const goesOn = this.length > 0 && shared === this.length && this.#end.length === this.#endLength
    if (goesOn && units === this.#tags.length) {
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
    // One unit suffices to detect another conversation, whatever it has in common with this one.
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

/** Blocks are compared by the C library: two prefixes that begin alike differ near their end. */
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
