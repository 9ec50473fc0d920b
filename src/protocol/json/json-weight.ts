/**
 * The nesting of a JSON value, and the work that a JSON text causes, estimated from its bytes before it is parsed. A text
 * of 16 MiB may be one image, parsed in 20 ms, or five million objects, which block the event loop for ten seconds.
 */
import { findStringEnd } from './json-list.ts'

/**
 * The deepest allowed nesting. JSON of any depth can be parsed, but serializing, comparing or copying it takes stack
 * space, which varies: the same value could pass in one function and fail in the next. Tool schemas, the deepest values
 * that agents send, stay below fifty.
 */
export const MAX_NESTING = 1_000

/** Counts in a JSON text, which determine the work of parsing it. They are correct only if the bytes are JSON. */
export interface JsonWeight {
  /** Number of objects, lists, and members of objects. */
  readonly nodes: number
  /** Number of values that follow another one in lists and objects. */
  readonly commas: number
  /** Number of members of the largest object. */
  readonly widest: number
}

export const WEIGHTLESS: JsonWeight = { nodes: 0, commas: 0, widest: 0 }

const [QUOTE, COMMA, COLON] = [0x22, 0x2c, 0x3a]
const [LIST, LIST_END, OBJECT, OBJECT_END] = [0x5b, 0x5d, 0x7b, 0x7d]

/**
 * The number of members so far of the object that is open at each depth. The array is reused, because allocating one
 * for each text would take most of the time.
 */
const members = new Uint32Array(MAX_NESTING + 1)

/** Computes the weight of a JSON text, or of a part of one. */
export function weigh(json: Buffer): JsonWeight {
  members[0] = 0
  let [nodes, commas, widest, depth] = [0, 0, 0, 0]
  for (let index = 0; index < json.length; index += 1) {
    const byte = json[index]!
    if (byte === QUOTE) index = findStringEnd(json, index) - 1
    else if (byte === COMMA) commas += 1
    else if (byte === COLON) {
      nodes += 1
      const count = ++members[depth]!
      if (count > widest) widest = count
    } else if (byte === OBJECT || byte === LIST) {
      nodes += 1
      // Deeper nesting is rejected elsewhere; a part of a text may close more levels than it opens.
      if (depth < MAX_NESTING) depth += 1
      members[depth] = 0
    } else if ((byte === OBJECT_END || byte === LIST_END) && depth > 0) depth -= 1
  }
  return { nodes, commas, widest }
}

/** Adds the counts of texts; `widest` is the maximum. */
export function addWeights(...weights: JsonWeight[]): JsonWeight {
  return weights.reduce((sum, { nodes, commas, widest }) => ({
    nodes: sum.nodes + nodes,
    commas: sum.commas + commas,
    widest: Math.max(sum.widest, widest),
  }))
}

/** Returns whether a parsed JSON value has more than {@link MAX_NESTING} levels of arrays and objects. */
export function isNestedTooDeeply(value: unknown, levels = MAX_NESTING): boolean {
  if (typeof value !== 'object' || value === null) return false
  if (levels === 0) return true
  if (Array.isArray(value)) {
    // A recursive call for each item would take most of the time for a prompt of a million ids.
    for (const item of value) if (typeof item === 'object' && isNestedTooDeeply(item, levels - 1)) return true
    return false
  }
  // `for in` allocates no list of the values, which matters because every request is traversed.
  for (const key in value)
    if (isNestedTooDeeply((value as Record<string, unknown>)[key], levels - 1)) return true
  return false
}
