/** Conversion of the parts of Gemini's contents to parts of canonical messages. */
import Type from 'typebox'
import { createUnsupportedError, type ProxyError } from '../../../base/errors.ts'
import type { ToolCall } from '../../../protocol/canonical/messages.ts'
import { createChecker } from '../common/check.ts'
import { toJsonText } from '../common/json-text.ts'
import { type ContentPart, describeFile, markAsError } from '../common/messages.ts'
import { seal, unseal } from '../common/sealed-reasoning.ts'
import { formatToolArguments } from '../common/tool-input.ts'
import { convertMembers } from './names.ts'
import type { Content } from './schema.ts'

/** A part, and its path in the body. */
export interface PartWithPath {
  part: Record<string, unknown>
  at: string
}

const text = Type.String()
const checkText = createChecker(Type.Object({ text }))
const checkBlob = createChecker(Type.Object({ mimeType: Type.String({ minLength: 1 }), data: text }))
const checkFile = createChecker(Type.Object({ fileUri: text, mimeType: Type.Optional(text) }))
const checkCall = createChecker(
  Type.Object({
    id: Type.Optional(text),
    name: Type.String({ minLength: 1 }),
    args: Type.Optional(Type.Unknown()),
  }),
)
const checkResponse = createChecker(
  Type.Object({
    id: Type.Optional(text),
    name: Type.Optional(text),
    response: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
    parts: Type.Optional(Type.Array(Type.Record(Type.String(), Type.Unknown()))),
  }),
)

/** Returns the parts that are not empty, each with its path. Google's API accepts a single part without a list. */
export function withPaths(parts: Content['parts'], at: string): PartWithPath[] {
  const list = Array.isArray(parts) ? parts : [parts ?? {}]
  return list
    .map((part, index) => ({
      part: convertMembers(part) as Record<string, unknown>,
      at: `${at}.parts.${index}`,
    }))
    .filter(({ part }) => Object.keys(part).length > 0)
}

/** Returns the text of a part. @throws ProxyError `invalid_request`, `unsupported` */
export function parseText({ part, at }: PartWithPath): string {
  if (part.text === undefined) throw createUnsupportedPartError({ part, at })
  return checkText(part, at).text
}

/**
 * Returns the content that a user's part, or a tool's result, shows to the model.
 * @throws ProxyError `invalid_request`, `unsupported`
 */
export function toContentParts(placed: PartWithPath): ContentPart[] {
  const { part, at } = placed
  if (part.inlineData !== undefined) return [toInlinePart(part.inlineData, `${at}.inlineData`)]
  if (part.fileData !== undefined) return [readFilePart(part.fileData, `${at}.fileData`)]
  return [{ type: 'text', text: parseText(placed) }]
}

function toInlinePart(blob: unknown, at: string): ContentPart {
  const { mimeType, data } = checkBlob(convertMembers(blob), at)
  if (mimeType.startsWith('text/')) return { type: 'text', text: Buffer.from(data, 'base64').toString() }
  if (!isImage(mimeType)) return describeFile(mimeType)
  // Google's Python SDK encodes bytes as base64url.
  const base64 = data.replaceAll('-', '+').replaceAll('_', '/')
  return { type: 'image_url', image_url: { url: `data:${mimeType};base64,${base64}` } }
}

function readFilePart(file: unknown, at: string): ContentPart {
  const { fileUri: url, mimeType = 'image/*' } = checkFile(convertMembers(file), at)
  if (!isImage(mimeType)) return describeFile(mimeType)
  return { type: 'image_url', image_url: { url } }
}

const isImage = (mimeType: string) => mimeType.startsWith('image/')

export function createUnsupportedPartError({ part, at }: PartWithPath): ProxyError {
  const [kind = 'nothing'] = Object.keys(part).filter((name) => !KINDLESS_FIELDS.has(name))
  return createUnsupportedError(`${at}: a part with '${kind}' is not supported here`, at)
}

/** Fields that do not determine the kind of a part. */
const KINDLESS_FIELDS: ReadonlySet<string> = new Set([
  'thought',
  'thoughtSignature',
  'partMetadata',
  'videoMetadata',
])

/** Parses a tool call. @param unnamed the id to use if the call has none */
export function parseFunctionCall({ part, at }: PartWithPath, unnamed: string): ToolCall {
  const { id, name, args } = checkCall(convertMembers(part.functionCall), `${at}.functionCall`)
  return {
    id: id || unnamed,
    type: 'function',
    function: { name, arguments: formatToolArguments(args ?? {}) },
  }
}

/** The result of a tool call, as parts of a canonical message. */
interface FunctionResponse {
  id: string | undefined
  name: string | undefined
  parts: ContentPart[]
}

/**
 * Parses the result of a tool call. In Google's API, `output` in the response contains the output and `error` error
 * details; without both, the complete response is the output.
 */
export function parseFunctionResponse({ part, at }: PartWithPath): FunctionResponse {
  const here = `${at}.functionResponse`
  const { id, name, response = {}, parts = [] } = checkResponse(convertMembers(part.functionResponse), here)
  const { output, error } = response
  const isError = error !== undefined && output === undefined
  const textParts: ContentPart[] = [{ type: 'text', text: toText(isError ? error : (output ?? response)) }]
  const shown = [...textParts, ...withPaths(parts, here).flatMap(toContentParts)]
  return { id, name, parts: isError ? markAsError(shown) : shown }
}

function toText(value: unknown): string {
  return typeof value === 'string' ? value : toJsonText(value)
}

/**
 * Encodes the reasoning before a part as the part's `thoughtSignature`: bytes in Base64, which clients return unread.
 */
export function encodeSignature(reasoning: string): string {
  return Buffer.from(seal(reasoning)).toString('base64')
}

/** Returns the reasoning in a signature; empty if this proxy did not create the signature. */
export function decodeSignature(signature: unknown): string {
  return typeof signature === 'string' ? (unseal(Buffer.from(signature, 'base64').toString()) ?? '') : ''
}
