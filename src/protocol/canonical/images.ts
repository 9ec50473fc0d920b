/**
 * The images of a conversation, in the order of the prompt. They stay in the messages as `data:` URLs; the types here
 * describe which tokens of the prompt represent them.
 */
import { hash } from 'node:crypto'
import { isRecord } from '../../base/json.ts'
import { concatIds } from '../token-ids/token-ids.ts'
import type { ChatMessage } from './messages.ts'

/** The ids before and after an image's tokens. */
export type ImageDelimiters = readonly [number, number]

/** The tokens of a prompt that represent its images. */
export interface PromptImages {
  /** The placeholder token that the prompt repeats once for each of an image's tokens. */
  readonly tokenId: number
  /** The number of tokens of each image, in the order of the messages' image parts. */
  readonly tokens: readonly number[]
  /** The ids around each image that the template does not render; absent: none. */
  readonly edges?: ImageDelimiters | undefined
}

interface ImagePart {
  /** undefined if the part has no URL that is a string. */
  readonly url: string | undefined
  /** The part's path in the message. */
  readonly path: string
}

/** Returns the image parts of a message. */
export function getImageParts({ content }: Pick<ChatMessage, 'content'>): ImagePart[] {
  if (!Array.isArray(content)) return []
  return (content as readonly unknown[]).flatMap((part, index) =>
    isImagePart(part) ? [{ url: getUrl(part.image_url), path: `content.${index}` }] : [],
  )
}

/** Returns the URLs of all images of a conversation; an empty text for an image without a URL. */
export function getImageUrls(messages: readonly Pick<ChatMessage, 'content'>[]): string[] {
  return messages.flatMap((message) => getImageParts(message).map(({ url }) => url ?? ''))
}

/** Returns whether a message has images, audio or video, which no token ids contain. */
export function hasMediaParts({ content }: Pick<ChatMessage, 'content'>): boolean {
  if (!Array.isArray(content)) return false
  // Engines also accept parts without a type, whose field names it.
  return (content as readonly unknown[]).some(
    (part) => isRecord(part) && /image|audio|video/.test(String(part.type ?? Object.keys(part))),
  )
}

export function isImagePart(part: unknown): part is { type: 'image_url'; image_url?: unknown } {
  return typeof part === 'object' && part !== null && (part as { type?: unknown }).type === 'image_url'
}

function getUrl(image: unknown): string | undefined {
  const url = typeof image === 'object' && image !== null ? (image as { url?: unknown }).url : image
  return typeof url === 'string' ? url : undefined
}

/** A run of placeholder tokens in a prompt. */
interface ImageRun {
  readonly offset: number
  readonly length: number
}

/** Locates the images in a prompt. @throws RangeError if the ids do not match the images */
export function findImageRuns(ids: Int32Array, { tokenId, tokens }: PromptImages): ImageRun[] {
  let from = 0
  return tokens.map((length) => {
    const offset = ids.indexOf(tokenId, from)
    from = offset + length
    if (offset === -1 || ids[from - 1] !== tokenId)
      throw new RangeError('the prompt lacks tokens of an image')
    return { offset, length }
  })
}

/**
 * Returns the ids with one placeholder for each image.
 * @param edges ids to omit around each image, for an engine that adds them itself
 * @throws RangeError as {@link findImageRuns} does, and if an image does not have these edges
 */
export function collapseImages(ids: Int32Array, images: PromptImages, edges?: ImageDelimiters): Int32Array {
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

/** Returns the SHA-256 of an image's bytes in hexadecimal, which names the image in the store. */
export function computeImageDigest(bytes: Uint8Array): string {
  return hash('sha256', bytes, 'hex')
}

/** The maximum length of a `data:` URL before its data. */
const MAX_HEAD_CHARS = 1_000

const DATA_URL = /^data:([\w.+-]+\/[\w.+-]+)?(?:;[\w.+-]+=[^;,]*)*;base64,/i

/** Splits a base64 `data:` URL. @returns undefined for any other URL */
export function splitDataUrl(url: string): { mediaType: string; base64: string } | undefined {
  // Only the beginning is matched: the regular expression backtracks on a stack of limited size.
  const head = DATA_URL.exec(url.slice(0, MAX_HEAD_CHARS))
  if (head === null) return undefined
  return {
    mediaType: (head[1] ?? 'application/octet-stream').toLowerCase(),
    base64: url.slice(head[0].length),
  }
}
