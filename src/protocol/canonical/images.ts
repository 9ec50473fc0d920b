/**
 * The images of a conversation, in a prompt's order. They stay in the messages, as `data:` URLs; what goes beside them
 * says which tokens of the prompt stand for them.
 */
import { hash } from 'node:crypto'
import { concatIds } from '../token-ids/token-ids.ts'
import type { ChatMessage } from './messages.ts'

/** Two ids: what stands before an image's tokens, and what stands after them. */
export type ImageEdges = readonly [number, number]

/** What a prompt of token ids has of images. */
export interface PromptImages {
  /** The token that a prompt has in the place of an image, as many times as the image has tokens. */
  readonly tokenId: number
  /** How many tokens each image has, in the order of the messages' image parts. */
  readonly tokens: readonly number[]
  /** What stands around each image and is not the template's; absent: nothing. */
  readonly edges?: ImageEdges | undefined
}

interface ImagePart {
  /** Undefined where the part has none that is text. */
  readonly url: string | undefined
  /** The part's path in the message. */
  readonly path: string
}

/** The image parts of a message. */
export function getImageParts({ content }: Pick<ChatMessage, 'content'>): ImagePart[] {
  if (!Array.isArray(content)) return []
  return (content as readonly unknown[]).flatMap((part, at) =>
    isImagePart(part) ? [{ url: getUrl(part.image_url), path: `content.${at}` }] : [],
  )
}

/** The URLs of all images of a conversation. */
export function getImageUrls(messages: readonly Pick<ChatMessage, 'content'>[]): string[] {
  return messages.flatMap((message) => getImageParts(message).map(({ url }) => url ?? ''))
}

export function isImagePart(part: unknown): part is { type: 'image_url'; image_url?: unknown } {
  return typeof part === 'object' && part !== null && (part as { type?: unknown }).type === 'image_url'
}

function getUrl(image: unknown): string | undefined {
  const url = typeof image === 'object' && image !== null ? (image as { url?: unknown }).url : image
  return typeof url === 'string' ? url : undefined
}

/** A run of placeholders in a prompt. */
interface ImageRun {
  readonly offset: number
  readonly length: number
}

/** Where the images stand. @throws RangeError if the ids are not those of the images */
export function findImageRuns(ids: Int32Array, { tokenId, tokens }: PromptImages): ImageRun[] {
  let from = 0
  return tokens.map((length) => {
    const offset = ids.indexOf(tokenId, from)
    from = offset + length
    if (offset === -1 || ids[from - 1] !== tokenId)
      throw new RangeError('an image has no place in the prompt')
    return { offset, length }
  })
}

/**
 * Ids with one placeholder for each image.
 * @param edges to be left out around each: an engine that has the model's processor write them writes them itself
 * @throws RangeError as {@link findImageRuns}, and where an image has other edges
 */
export function collapseImages(ids: Int32Array, images: PromptImages, edges?: ImageEdges): Int32Array {
  const parts: Int32Array[] = []
  let from = 0
  for (const { offset, length } of findImageRuns(ids, images)) {
    const end = offset + length
    if (edges !== undefined && (ids[offset - 1] !== edges[0] || ids[end] !== edges[1]))
      throw new RangeError('an image has no edges in the prompt')
    parts.push(
      ids.subarray(from, edges === undefined ? offset : offset - 1),
      ids.subarray(offset, offset + 1),
    )
    from = edges === undefined ? end : end + 1
  }
  return concatIds(...parts, ids.subarray(from))
}

/** By which an image is named on record: of its bytes, in hexadecimal. */
export function computeImageDigest(bytes: Uint8Array): string {
  return hash('sha256', bytes, 'hex')
}

/** Of what is before the data. */
const MAX_HEAD_CHARS = 1_000

const DATA_URL = /^data:([\w.+-]+\/[\w.+-]+)?(?:;[\w.+-]+=[^;,]*)*;base64,/i

/** @returns undefined for what is no `data:` URL in base64 */
export function splitDataUrl(url: string): { mediaType: string; base64: string } | undefined {
  // The expression goes back over what it has read, on a stack that has an end.
  const head = DATA_URL.exec(url.slice(0, MAX_HEAD_CHARS))
  if (head === null) return undefined
  return {
    mediaType: (head[1] ?? 'application/octet-stream').toLowerCase(),
    base64: url.slice(head[0].length),
  }
}
