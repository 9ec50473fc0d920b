/** Writes JSON chunk by chunk, so that a response of any size takes little memory. */
import { Readable } from 'node:stream'
import { setImmediate as yieldToEventLoop } from 'node:timers/promises'
import type { FastifyReply } from 'fastify'

/** The number of numbers per chunk, whose text is some tens of kilobytes. */
const NUMBERS_PER_CHUNK = 4096

/** Replaces numbers that are not finite, which JSON cannot express; null would break readers that expect numbers. */
const LOWEST = String(-Number.MAX_VALUE)

/** The number of characters per write. */
const BLOCK_LENGTH = 65_536

type NumberArray = Int32Array | Uint8Array | Float64Array

type Chunks = AsyncIterable<string> | Iterable<string>

/** Responds with the JSON text that the chunks form. */
export function streamJson(reply: FastifyReply, chunks: Chunks): FastifyReply {
  return reply.type('application/json; charset=utf-8').send(createJsonStream(chunks))
}

/**
 * Returns a body that is produced no faster than the client reads it; when the client disconnects, `return()` of
 * `chunks` is called.
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
    // Otherwise a client that reads as fast as the proxy writes would delay all other requests.
    await yieldToEventLoop()
  }
  if (block !== '') yield block
}

/** Yields a plain object as JSON, its arrays element by element, so that no chunk is as long as the response. */
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

/** Returns a JSON object of plain values, left open for members that are written chunk by chunk. */
export function openObject(values: object): string {
  return JSON.stringify(values).slice(0, -1)
}

/** Yields a member that follows others. */
export function* writeMember(name: string, chunks: Iterable<string>): Generator<string> {
  yield `,"${name}":`
  yield* chunks
}
