/** Writes JSON chunk by chunk, so that a response of any size takes little memory. */
import { Readable } from 'node:stream'
import { setImmediate as nextLoopTurn } from 'node:timers/promises'
import type { FastifyReply } from 'fastify'

/** The count of numbers in one chunk of text: some tens of kilobytes. */
const NUMBERS_PER_PIECE = 4096

/** Replaces numbers that are not finite, which JSON cannot express; null would break readers that expect numbers. */
const LOWEST = String(-Number.MAX_VALUE)

/** The number of characters per write. */
const BLOCK_LENGTH = 65_536

type NumberArray = Int32Array | Uint8Array | Float64Array

type Pieces = AsyncIterable<string> | Iterable<string>

/** Responds with the JSON text that the chunks form. */
export function streamJson(reply: FastifyReply, pieces: Pieces): FastifyReply {
  return reply.type('application/json; charset=utf-8').send(jsonStream(pieces))
}

/**
 * Returns a body that is produced no faster than the client reads it; when the client leaves, `return()` of `pieces` is
 * called.
 */
export function jsonStream(pieces: Pieces): Readable {
  return Readable.from(inBlocks(pieces), { objectMode: false })
}

async function* inBlocks(pieces: Pieces): AsyncGenerator<string> {
  let block = ''
  for await (const piece of pieces) {
    block += piece
    if (block.length < BLOCK_LENGTH) continue
    yield block
    block = ''
    // A client that reads as fast as this writes would keep all others waiting.
    await nextLoopTurn()
  }
  if (block !== '') yield block
}

/** Yields a plain object as JSON, its arrays element by element: no text is as long as the whole response. */
export function* objectPieces(values: object): Generator<string> {
  let separator = '{'
  for (const [name, value] of Object.entries(values)) {
    if (value === undefined) continue
    yield `${separator}${JSON.stringify(name)}:`
    separator = ','
    if (Array.isArray(value)) yield* arrayPieces(value)
    else yield JSON.stringify(value)
  }
  yield separator === '{' ? '{}' : '}'
}

function* arrayPieces(items: readonly unknown[]): Generator<string> {
  yield '['
  for (const [position, item] of items.entries())
    yield `${position > 0 ? ',' : ''}${JSON.stringify(item) ?? 'null'}`
  yield ']'
}

/** Yields a JSON array of numbers. Numbers that are not finite become the lowest double. */
export function* numberArray(numbers: NumberArray): Generator<string> {
  yield '['
  for (let start = 0; start < numbers.length; start += NUMBERS_PER_PIECE) {
    const text = numbers.subarray(start, start + NUMBERS_PER_PIECE).join(',')
    const comma = start > 0 ? ',' : ''
    yield comma + (/[IN]/.test(text) ? text.replaceAll(/-?Infinity|NaN/g, LOWEST) : text)
  }
  yield ']'
}

/** Yields a JSON array of items that already are JSON texts. */
export function* textArray(items: readonly string[]): Generator<string> {
  yield '['
  for (const [position, item] of items.entries()) yield position > 0 ? `,${item}` : item
  yield ']'
}

/** Returns a JSON object of plain values, left open for members that are written chunk by chunk. */
export function openObject(values: object): string {
  return JSON.stringify(values).slice(0, -1)
}

/** Yields a member that follows others. */
export function* member(name: string, pieces: Iterable<string>): Generator<string> {
  yield `,"${name}":`
  yield* pieces
}
