/**
 * Bytes that have been read before, and whether others begin like them: a request, or a list of ids, begins with the one
 * before it. Those that somebody needs again are kept ({@link BytePrefix}); of others a proof is enough ({@link DigestPrefix}).
 */
import { GrowableBuffer } from './growable-json.ts'
import { computeSecretTag } from './secret-tag.ts'

/** Not to be changed: what is read later is another one, which shares memory with it. */
export interface VerifiedPrefix {
  readonly length: number
  /** What they keep in memory. What several share each of them counts. */
  readonly bytes: number
  /** How many bytes others begin with that these begin with too: at least, where it is not all of these. */
  sharedWith(others: Buffer): number
  /**
   * Others, known from now on. Nothing of them is kept but copies.
   * @param shared as {@link sharedWith} has it
   */
  followedBy(others: Buffer, shared: number): VerifiedPrefix
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

  /** Not to be changed. */
  get whole(): Buffer {
    return this.#bytes.upTo(this.length)
  }

  sharedWith(others: Buffer): number {
    return getSharedLength(this.whole, others)
  }

  followedBy(others: Buffer, shared: number): BytePrefix {
    const goesOn = shared === this.length && this.#bytes.length === shared
    if (!goesOn) return BytePrefix.of(others)
    this.#bytes.append(others.subarray(shared))
    return new BytePrefix(this.#bytes)
  }
}

const UNIT_BYTES = 16 * 1024

/** At the end, where the next ones may differ, so many bytes are kept as they are, and up to a unit more. */
const END_BYTES = 16 * 1024

/** Of a tag as a text, with its place in a list. */
const TAG_BYTES = 40

/**
 * Knows bytes by the tags of their units, and is exact about their end only. To compare takes as long as with the bytes
 * themselves, as one tag stands for all units together; only where that is another one, the units are looked at.
 */
export class DigestPrefix implements VerifiedPrefix {
  static readonly NONE = new DigestPrefix([], '', new GrowableBuffer())

  readonly length: number
  /** One for each unit. */
  readonly #tags: readonly string[]
  /** Of all units together. */
  readonly #allTag: string
  /** What comes behind the units. */
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
    return DigestPrefix.NONE.followedBy(bytes, 0)
  }

  get bytes(): number {
    return this.#tags.length * TAG_BYTES + this.#end.capacity
  }

  sharedWith(others: Buffer): number {
    const units = this.#sharedUnits(others)
    const inUnits = units * UNIT_BYTES
    if (units < this.#tags.length) return inUnits
    return inUnits + getSharedLength(this.#end.upTo(this.#endLength), others.subarray(inUnits))
  }

  followedBy(others: Buffer, shared: number): DigestPrefix {
    const units = Math.max(0, Math.ceil((others.length - END_BYTES - UNIT_BYTES) / UNIT_BYTES))
    const known = Math.min(units, this.#tags.length, Math.floor(shared / UNIT_BYTES))
    // Not nothing: that is one for all, and whatever was written behind it would stay with it.
    const goesOn = this.length > 0 && shared === this.length && this.#end.length === this.#endLength
    if (goesOn && units === this.#tags.length) {
      this.#end.append(others.subarray(shared))
      return new DigestPrefix(this.#tags, this.#allTag, this.#end)
    }
    const tags = this.#tags.slice(0, known)
    for (let at = known; at < units; at += 1) tags.push(computeUnitTag(others, at))
    const isSame = units === known && units === this.#tags.length
    const allTag = isSame ? this.#allTag : computeSecretTag(others.subarray(0, units * UNIT_BYTES))
    return new DigestPrefix(tags, allTag, grow(others.subarray(units * UNIT_BYTES)))
  }

  #sharedUnits(others: Buffer): number {
    const count = this.#tags.length
    if (count === 0) return 0
    // Another conversation is told by one unit, whatever it has in common with this one.
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

/** Compared by the C library: two that begin alike differ near their end. */
const BLOCK_BYTES = 4 * 1024

/** How many bytes the two begin with alike. */
function getSharedLength(left: Buffer, right: Buffer): number {
  const end = Math.min(left.length, right.length)
  const isAlike = (from: number, to: number) => left.compare(right, from, to, from, to) === 0
  if (isAlike(0, end)) return end
  let at = 0
  while (at + BLOCK_BYTES <= end && isAlike(at, at + BLOCK_BYTES)) at += BLOCK_BYTES
  while (left[at] === right[at]) at += 1
  return at
}
