/**
 * Bytes that have been read before, and whether others begin like them: a request, or a list of ids, begins with the one
 * before it. Those that somebody needs again are kept ({@link KeptBytes}); of others a proof is enough ({@link ProvenBytes}).
 */
import { GrowingBytes } from './growing-json.ts'
import { tagOf } from './secret-tag.ts'

/** Not to be changed: what is read later is another one, which shares memory with it. */
export interface KnownBytes {
  readonly length: number
  /** What they keep in memory. What several share each of them counts. */
  readonly bytes: number
  /** How many bytes others begin with that these begin with too: at least, where it is not all of these. */
  sharedWith(others: Buffer): number
  /**
   * Others, known from now on. Nothing of them is kept but copies.
   * @param shared as {@link sharedWith} has it
   */
  followedBy(others: Buffer, shared: number): KnownBytes
}

export class KeptBytes implements KnownBytes {
  readonly length: number
  readonly #bytes: GrowingBytes

  private constructor(bytes: GrowingBytes) {
    this.#bytes = bytes
    this.length = bytes.length
  }

  static of(bytes: Buffer): KeptBytes {
    return new KeptBytes(grown(bytes))
  }

  get bytes(): number {
    return this.#bytes.capacity
  }

  /** Not to be changed. */
  get whole(): Buffer {
    return this.#bytes.upTo(this.length)
  }

  sharedWith(others: Buffer): number {
    return sharedStart(this.whole, others)
  }

  followedBy(others: Buffer, shared: number): KeptBytes {
    const goesOn = shared === this.length && this.#bytes.length === shared
    if (!goesOn) return KeptBytes.of(others)
    this.#bytes.append(others.subarray(shared))
    return new KeptBytes(this.#bytes)
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
export class ProvenBytes implements KnownBytes {
  static readonly NONE = new ProvenBytes([], '', new GrowingBytes())

  readonly length: number
  /** One for each unit. */
  readonly #tags: readonly string[]
  /** Of all units together. */
  readonly #allTag: string
  /** What comes behind the units. */
  readonly #end: GrowingBytes
  readonly #endLength: number

  private constructor(tags: readonly string[], allTag: string, end: GrowingBytes) {
    this.#tags = tags
    this.#allTag = allTag
    this.#end = end
    this.#endLength = end.length
    this.length = tags.length * UNIT_BYTES + end.length
  }

  static of(bytes: Buffer): ProvenBytes {
    return ProvenBytes.NONE.followedBy(bytes, 0)
  }

  get bytes(): number {
    return this.#tags.length * TAG_BYTES + this.#end.capacity
  }

  sharedWith(others: Buffer): number {
    const units = this.#sharedUnits(others)
    const inUnits = units * UNIT_BYTES
    if (units < this.#tags.length) return inUnits
    return inUnits + sharedStart(this.#end.upTo(this.#endLength), others.subarray(inUnits))
  }

  followedBy(others: Buffer, shared: number): ProvenBytes {
    const units = Math.max(0, Math.ceil((others.length - END_BYTES - UNIT_BYTES) / UNIT_BYTES))
    const known = Math.min(units, this.#tags.length, Math.floor(shared / UNIT_BYTES))
    // Not nothing: that is one for all, and whatever was written behind it would stay with it.
    const goesOn = this.length > 0 && shared === this.length && this.#end.length === this.#endLength
    if (goesOn && units === this.#tags.length) {
      this.#end.append(others.subarray(shared))
      return new ProvenBytes(this.#tags, this.#allTag, this.#end)
    }
    const tags = this.#tags.slice(0, known)
    for (let at = known; at < units; at += 1) tags.push(unitTag(others, at))
    const isSame = units === known && units === this.#tags.length
    const allTag = isSame ? this.#allTag : tagOf(others.subarray(0, units * UNIT_BYTES))
    return new ProvenBytes(tags, allTag, grown(others.subarray(units * UNIT_BYTES)))
  }

  #sharedUnits(others: Buffer): number {
    const count = this.#tags.length
    if (count === 0) return 0
    // Another conversation is told by one unit, whatever it has in common with this one.
    const mayBeAll = others.length >= count * UNIT_BYTES && unitTag(others, count - 1) === this.#tags.at(-1)
    if (mayBeAll && tagOf(others.subarray(0, count * UNIT_BYTES)) === this.#allTag) return count
    let shared = 0
    while (others.length >= (shared + 1) * UNIT_BYTES && unitTag(others, shared) === this.#tags[shared]) {
      shared += 1
    }
    return shared
  }
}

function unitTag(bytes: Buffer, unit: number): string {
  return tagOf(bytes.subarray(unit * UNIT_BYTES, (unit + 1) * UNIT_BYTES))
}

function grown(bytes: Buffer): GrowingBytes {
  const own = new GrowingBytes()
  own.append(bytes)
  return own
}

/** Compared by the C library: two that begin alike differ near their end. */
const BLOCK_BYTES = 4 * 1024

/** How many bytes the two begin with alike. */
function sharedStart(left: Buffer, right: Buffer): number {
  const end = Math.min(left.length, right.length)
  const isAlike = (from: number, to: number) => left.compare(right, from, to, from, to) === 0
  if (isAlike(0, end)) return end
  let at = 0
  while (at + BLOCK_BYTES <= end && isAlike(at, at + BLOCK_BYTES)) at += BLOCK_BYTES
  while (left[at] === right[at]) at += 1
  return at
}
