/** Reads frames: parses bytes into an object with a `type`, and validates it against its schema. */
import type Type from 'typebox'
import { compileLazily } from '../../base/compile-lazily.ts'
import { listSchemaErrors } from '../schema/schema-errors.ts'
import {
  CallsAlive,
  CompletionAck,
  CompletionCancel,
  CompletionChunk,
  CompletionRequestV2,
  CompletionResponseV1,
  CompletionResponseV2,
  SessionEnd,
  WorkerHelloAckV2,
  WorkerHelloV1,
  WorkerHelloV2,
  WorkerStatus,
  WorkerStatusRequest,
} from './protocol.ts'

/** A parsed frame, of which only the presence of `type` is validated. */
export interface Frame {
  type: string
  [field: string]: unknown
}

/** A message as a socket of `ws` delivers it, usually bytes. */
export interface RawFrame {
  toString(): string
}

/**
 * Parses a frame.
 * @param parse parses JSON; a caller that caches earlier values may pass a faster parser
 * @returns undefined for anything that is not a frame: binary, not JSON, or without a `type`
 */
export function parseFrame(data: RawFrame, isBinary: boolean, parse = parseText): Frame | undefined {
  if (isBinary) return undefined
  const value =
    tryParse(() => parse(data)) ?? tryParse(() => parseRepaired(data.toString(), parse === parseText))
  return isFrame(value) ? value : undefined
}

function parseText(data: RawFrame): unknown {
  return JSON.parse(data.toString())
}

/**
 * Parses a text after replacing numbers that are not JSON.
 * @param wasParsed whether parsing the unchanged text has failed: parsing it again would block for twice as long
 */
function parseRepaired(text: string, wasParsed: boolean): unknown {
  const repaired = replaceNonNumbers(text)
  return wasParsed && repaired === text ? undefined : JSON.parse(repaired)
}

function tryParse(parse: () => unknown): unknown {
  try {
    return parse()
  } catch {
    return undefined
  }
}

function isFrame(value: unknown): value is Frame {
  return typeof value === 'object' && value !== null && 'type' in value && typeof value.type === 'string'
}

/**
 * Replaces each `NaN`, `Infinity` and `-Infinity` outside of strings by null: Python's `json` writes them for logprobs.
 * It takes one pass for any text, because the text is untrusted.
 */
function replaceNonNumbers(text: string): string {
  const strings = new JsonStringTracker(text)
  const parts: string[] = []
  let done = 0
  for (const { 0: word, index } of text.matchAll(/-?Infinity|NaN/g)) {
    if (strings.isInString(index)) continue
    parts.push(text.slice(done, index), 'null')
    done = index + word.length
  }
  return parts.length === 0 ? text : parts.join('') + text.slice(done)
}

const [QUOTE, BACKSLASH] = [0x22, 0x5c]

/** A tracker of the parts of a JSON text that are in strings, in one pass. */
class JsonStringTracker {
  readonly #text: string
  #at = 0
  #inString = false

  constructor(text: string) {
    this.#text = text
  }

  /** Returns whether an index is in a string. @param index not below that of the previous invocation */
  isInString(index: number): boolean {
    while (this.#at < index) {
      const code = this.#text.charCodeAt(this.#at)
      if (code === QUOTE) this.#inString = !this.#inString
      this.#at += this.#inString && code === BACKSLASH ? 2 : 1
    }
    return this.#inString
  }
}

/** The validator of one frame's schema, compiled on first use. */
class FrameValidator<Schema extends Type.TSchema> {
  readonly #schema: Schema
  readonly #compiled: ReturnType<typeof compileLazily>

  constructor(schema: Schema) {
    this.#schema = schema
    this.#compiled = compileLazily(schema)
  }

  isValid(frame: unknown): frame is Type.Static<Schema> {
    return this.#compiled().Check(frame)
  }

  /** Describes why an invalid frame is rejected: the path and the reason, never the value. */
  explain(frame: unknown): string {
    const [error] = listSchemaErrors(this.#schema, this.#compiled(), frame)
    return error ? `${error.instancePath || 'frame'} ${error.message}` : 'frame does not match its schema'
  }
}

export const helloV1 = new FrameValidator(WorkerHelloV1)
export const helloV2 = new FrameValidator(WorkerHelloV2)
export const helloAckV2 = new FrameValidator(WorkerHelloAckV2)
export const requestV2 = new FrameValidator(CompletionRequestV2)
export const responseV1 = new FrameValidator(CompletionResponseV1)
export const responseV2 = new FrameValidator(CompletionResponseV2)
export const chunk = new FrameValidator(CompletionChunk)
export const cancel = new FrameValidator(CompletionCancel)
export const sessionEnd = new FrameValidator(SessionEnd)
export const ack = new FrameValidator(CompletionAck)
export const workerStatus = new FrameValidator(WorkerStatus)
export const workerStatusRequest = new FrameValidator(WorkerStatusRequest)
export const callsAlive = new FrameValidator(CallsAlive)
