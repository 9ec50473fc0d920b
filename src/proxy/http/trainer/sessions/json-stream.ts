/** Writes JSON in chunks, so that a response of any size occupies little memory. */
import { Readable } from 'node:stream'
import { setImmediate as yieldToEventLoop } from 'node:timers/promises'
import type { FastifyReply } from 'fastify'

/** The number of list elements in one chunk, so that its text has some tens of kilobytes. */
const NUMBERS_PER_CHUNK = 4096

/** The replacement for numbers that JSON cannot express; readers that expect numbers would reject null. */
const LOWEST = String(-Number.MAX_VALUE)

/** The minimum number of characters per write. */
const BLOCK_LENGTH = 65_536

type NumberArray = Int32Array | Uint8Array | Float64Array

/** The chunks of a JSON text. */
type Chunks = AsyncIterable<string> | Iterable<string>

/** Sends the JSON text that the chunks form. */
export function streamJson(reply: FastifyReply, chunks: Chunks): FastifyReply {
  return reply.type('application/json; charset=utf-8').send(createJsonStream(chunks))
}

/**
 * Returns a body that is generated no faster than the client reads it. When the client disconnects, `return()` is
 * called on `chunks`.
 */
export function createJsonStream(chunks: Chunks): Readable {
  return Readable.from(joinBlocks(chunks), { objectMode: false })
}

async function* joinBlocks(chunks: Chunks): AsyncGenerator<string> {
  let block = ''
  for await (const chunk of chunks) {
    block += chunk
    if (block.length < BLOCK_LENGTH) continue
    yield block
    block = ''
    // Without this, a client that reads as fast as the proxy writes would delay all other requests.
    await yieldToEventLoop()
  }
  if (block !== '') yield block
}

/** Yields an object as JSON. Its arrays are written element by element, so that no chunk contains a whole array. */
export function* writeObject(values: object): Generator<string> {
  let separator = '{'
  for (const [name, value] of Object.entries(values)) {
    if (value === undefined) continue
    yield `${separator}${JSON.stringify(name)}:`
    separator = ','
    if (Array.isArray(value)) yield* writeArray(value)
    else yield JSON.stringify(value)
  }
  yield separator === '{' ? '{}' : '}'
}

function* writeArray(items: readonly unknown[]): Generator<string> {
  yield '['
  for (const [position, item] of items.entries())
    yield `${position > 0 ? ',' : ''}${JSON.stringify(item) ?? 'null'}`
  yield ']'
}

/** Yields a JSON array of numbers. Numbers that are not finite become the lowest double. */
export function* writeNumbers(numbers: NumberArray): Generator<string> {
  yield '['
  for (let start = 0; start < numbers.length; start += NUMBERS_PER_CHUNK) {
    const text = numbers.subarray(start, start + NUMBERS_PER_CHUNK).join(',')
    const comma = start > 0 ? ',' : ''
    yield comma + (/[IN]/.test(text) ? text.replaceAll(/-?Infinity|NaN/g, LOWEST) : text)
  }
  yield ']'
}

/** Yields a JSON array of items that already are JSON texts. */
export function* writeTexts(items: readonly string[]): Generator<string> {
  yield '['
  for (const [position, item] of items.entries()) yield position > 0 ? `,${item}` : item
  yield ']'
}

/** Returns a JSON object without its closing brace, so that members can be added in chunks. */
export function openObject(values: object): string {
  return JSON.stringify(values).slice(0, -1)
}

/** Yields a member of an object, preceded by a comma. */
export function* writeMember(name: string, chunks: Iterable<string>): Generator<string> {
  yield `,"${name}":`
  yield* chunks
}
