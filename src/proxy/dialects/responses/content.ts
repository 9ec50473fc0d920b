/** Conversion of content parts of the Responses API to the form of Chat Completions. */
import Type, { type Static } from 'typebox'
import { createInvalidError, createUnsupportedError } from '../../../base/errors.ts'
import { toNullable } from '../common/check.ts'
import { omitFields } from '../common/other-fields.ts'

const Part = Type.Object({
  type: Type.String(),
  text: Type.Optional(Type.String()),
  refusal: Type.Optional(Type.String()),
  image_url: toNullable(Type.String()),
  file_data: toNullable(Type.String()),
})
type Part = Static<typeof Part> & Record<string, unknown>

export const Content = Type.Union([Type.String(), Type.Array(Part)])
export type Content = string | Part[]

/** Fields of a response's text that agents send back, and that no model reads. */
const ECHOED_FIELDS = new Set(['annotations', 'logprobs'])

/**
 * Lowers content. A single plain text part, which most agents send, becomes a string.
 * @throws ProxyError `unsupported`
 */
export function lowerContent(content: Content, at: string): string | object[] {
  if (typeof content === 'string') return content
  const parts = content.map((part, index) => lowerPart(part, `${at}.${index}`))
  const only = parts.length === 1 ? parts[0] : undefined
  if (only && 'text' in only && Object.keys(only).length === 2) return only.text as string
  return parts
}

function lowerPart(part: Part, at: string): object {
  const { type, ...fields } = part
  if (type === 'input_text' || type === 'output_text' || type === 'text') {
    return { type: 'text', ...omitFields(fields, ECHOED_FIELDS), text: parseText(part, at) }
  }
  if (type === 'input_image') return lowerImage(part, at)
  if (type === 'input_file' && typeof part.file_data === 'string') {
    const { file_data, filename } = part
    return { type: 'file', file: { file_data, filename } }
  }
  if (type === 'input_file') throw createUnsupportedError("A file must be given as 'file_data'", at)
  if (type === 'input_audio') return part
  if (type === 'refusal') return { type, refusal: part.refusal ?? '' }
  throw createUnsupportedError(`Content of type '${type}' is not supported in this form`, at)
}

function lowerImage({ image_url, detail }: Part, at: string): object {
  if (typeof image_url !== 'string') throw createUnsupportedError("An image must be given as 'image_url'", at)
  const how = typeof detail === 'string' ? { detail } : {}
  return { type: 'image_url', image_url: { url: image_url, ...how } }
}

/** Returns the text and the refusal of an assistant's content. */
export function joinAssistantTexts(
  content: Content,
  at: string,
): { text: string | null; refusal: string | null } {
  if (typeof content === 'string') return { text: content, refusal: null }
  const result: { text: string | null; refusal: string | null } = { text: null, refusal: null }
  for (const [index, part] of content.entries()) {
    if (part.type === 'refusal') result.refusal = (result.refusal ?? '') + (part.refusal ?? '')
    else if (part.type.endsWith('text')) result.text = (result.text ?? '') + parseText(part, `${at}.${index}`)
    else
      throw createUnsupportedError(
        `Content of type '${part.type}' cannot be an assistant's`,
        `${at}.${index}`,
      )
  }
  return result
}

function parseText({ text }: Part, at: string): string {
  if (text !== undefined) return text
  throw createInvalidError(`'${at}.text' is required`, `${at}.text`)
}
