/** Writes JSON piece by piece, so that an answer of any size takes little memory. */
import { Readable } from 'node:stream'
import { setImmediate as nextLoopTurn } from 'node:timers/promises'
import type { FastifyReply } from 'fastify'

/** Numbers to one piece of text: some tens of kilobytes. */
const NUMBERS_PER_PIECE = 4096

/** JSON has no word for what is not finite; null would break readers that expect numbers. */
const LOWEST = String(-Number.MAX_VALUE)

/** Characters to one write. */
const BLOCK_LENGTH = 65_536

type NumberArray = Int32Array | Uint8Array | Float64Array

type Pieces = AsyncIterable<string> | Iterable<string>

/** Answers with the JSON that the pieces are. */
export function streamJson(reply: FastifyReply, pieces: Pieces): FastifyReply {
  return reply.type('application/json; charset=utf-8').send(jsonStream(pieces))
}

/** A body that is made no faster than the client reads it; when the client leaves, `return()` of `pieces` is called. */
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

/** A JSON array of numbers. What is not finite becomes the lowest double. */
export function* numberArray(numbers: NumberArray): Generator<string> {
  yield '['
  for (let start = 0; start < numbers.length; start += NUMBERS_PER_PIECE) {
    const text = numbers.subarray(start, start + NUMBERS_PER_PIECE).join(',')
    const comma = start > 0 ? ',' : ''
    yield comma + (/[IN]/.test(text) ? text.replaceAll(/-?Infinity|NaN/g, LOWEST) : text)
  }
  yield ']'
}

/** A JSON array of items that are JSON texts already. */
export function* textArray(items: readonly string[]): Generator<string> {
  yield '['
  for (const [position, item] of items.entries()) yield position > 0 ? `,${item}` : item
  yield ']'
}

/** A JSON object from plain values, left open for members that are written piece by piece. */
export function openObject(values: object): string {
  return JSON.stringify(values).slice(0, -1)
}

/** A member that follows others. */
export function* member(name: string, pieces: Iterable<string>): Generator<string> {
  yield `,"${name}":`
  yield* pieces
}
