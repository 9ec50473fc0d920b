/**
 * Adds images to prompts. A template receives a placeholder part for each image; the placeholder token that it writes
 * is repeated as often as the image has tokens.
 */
import { disableTypes, imageSize, types } from 'image-size'
import { ProxyError } from '../../../base/errors.ts'
import { SideTable } from '../../../base/side-table.ts'
import { Message } from '../../../protocol/canonical/conversation.ts'
import {
  computeImageDigest,
  findImageRuns,
  getImageParts,
  isImagePart,
  splitDataUrl,
} from '../../../protocol/canonical/images.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { TokenIds } from '../../../protocol/token-ids/token-ids.ts'
import type { ImageRule } from './image-rule.ts'
import type { ImageSize } from './image-sizes.ts'
import { PLACEHOLDER_IMAGE } from './placeholder-image.ts'

/** An image with its number of tokens. */
export interface TokenImage extends ImageInfo {
  readonly tokens: number
}

/** A message as the template receives it: JSON with placeholders, and the images that they replace. */
export interface TemplateMessage {
  readonly json: string
  readonly images: readonly TokenImage[]
}

const NO_IMAGES: readonly TokenImage[] = []

/** A cache of converted messages, because each message is part of many requests. */
const templateMessages = new SideTable<Message, TemplateMessage>()

/**
 * Converts messages for a template. Results are cached.
 * @throws see {@link toTemplateMessage}
 */
export function toTemplateMessages(
  messages: readonly Message[],
  rule: ImageRule | undefined,
): TemplateMessage[] {
  return messages.map(
    (message) =>
      templateMessages.get(message) ??
      templateMessages.attach(
        message,
        toTemplateMessage(message.value, rule, message.depth - 1, message.json),
      ),
  )
}

/** The text that replaces an image in a tool result. */
const UNSEEN_IMAGE = '[An image. This model cannot see images that tools return.]'

/** The copies of messages in which {@link UNSEEN_IMAGE} replaces images, by the original message. */
const describedMessages = new SideTable<Message, Message>()

/**
 * Replaces images in tool results by a text, for a model that cannot receive them there. A tool returns an image
 * because the model requested a file, and an error would end the agent. Images in other messages are not
 * replaced, because they are part of the task.
 */
export function replaceToolImages(messages: readonly Message[]): readonly Message[] {
  return messages.map(
    (message) =>
      describedMessages.get(message) ?? describedMessages.attach(message, describeMessageImages(message)),
  )
}

function describeMessageImages(message: Message): Message {
  const { value } = message
  if (value.role !== 'tool' || getImageParts(value).length === 0) return message
  const parts = (value.content as readonly unknown[]).map((part) =>
    isImagePart(part) ? { type: 'text', text: UNSEEN_IMAGE } : part,
  )
  const replaced = { ...value, content: parts.length === 1 ? UNSEEN_IMAGE : parts } as ChatMessage
  return new Message(message.parent, JSON.stringify(replaced), replaced)
}

/**
 * Converts a message for a template.
 * @param index the index of the message in the request
 * @param json the message's original JSON
 * @throws ProxyError `unsupported` if the model's rule for images is unknown, or an image is not a `data:` URL;
 *   `invalid_request` for an image that cannot be read
 */
export function toTemplateMessage(
  message: ChatMessage,
  rule: ImageRule | undefined,
  index: number,
  json?: string,
): TemplateMessage {
  rejectPlaceholder(message, index)
  const parts = getImageParts(message)
  if (parts.length === 0) return { json: json ?? JSON.stringify(message), images: NO_IMAGES }
  const images = parts.map(({ url, path }) => readTokenImage(url, rule, `messages.${index}.${path}`))
  const content = (message.content as readonly unknown[]).map((part) =>
    isImagePart(part) ? PLACEHOLDER_IMAGE : part,
  )
  return { json: JSON.stringify({ ...message, content }), images }
}

/** Rejects a message from a client that contains a placeholder part, which would be an image without pixels. */
function rejectPlaceholder({ content }: ChatMessage, index: number): void {
  if (!Array.isArray(content)) return
  const i = (content as readonly { type?: unknown }[]).findIndex(
    (part) => part?.type === PLACEHOLDER_IMAGE.type,
  )
  if (i === -1) return
  const message = `content of type ${PLACEHOLDER_IMAGE.type} cannot be turned into tokens by the proxy`
  throw new ProxyError('unsupported', message, { param: `messages.${index}.content.${i}` })
}

function readTokenImage(url: string | undefined, rule: ImageRule | undefined, param: string): TokenImage {
  if (rule === undefined) {
    const message =
      'images are not supported for this model in token mode (supported by their preprocessor_config.json: Qwen, ' +
      'Gemma 4, GLM, Kimi K2.5); use chat mode'
    throw new ProxyError('unsupported', message, { param })
  }
  const image = readImage(url, param)
  const tokens = rule.countTokens(image)
  if (tokens !== undefined) return { ...image, tokens }
  const { width, height } = image
  throw new ProxyError('invalid_request', `an image of ${width} by ${height} pixels is too narrow`, { param })
}

/**
 * Returns ids in which the placeholder of each image is repeated for each of its tokens, with the delimiters of the
 * rule.
 * @param ids the ids of a prompt with one placeholder for each image
 * @throws ProxyError `invalid_request` if the number of placeholders differs, which happens if a text contains the
 *   placeholder
 */
export function withImages(
  ids: TokenIds,
  images: readonly TokenImage[],
  rule: ImageRule | undefined,
): TokenIds {
  if (rule === undefined) return ids
  let found = 0
  for (let index = 0; index < ids.length; index += 1) if (ids[index] === rule.tokenId) found += 1
  if (found !== images.length) {
    const message = `the template rendered ${found} images, but the messages have ${images.length}`
    throw new ProxyError('invalid_request', message, { param: 'messages' })
  }
  if (found === 0) return ids
  let next = 0
  const [before, after] = rule.edges?.map((edge) => [edge]) ?? [[], []]
  return Array.from(ids).flatMap((id) =>
    id === rule.tokenId ? [...before!, ...new Array(images[next++]!.tokens).fill(id), ...after!] : id,
  )
}

/** An image and its position in a prompt. */
export interface ImagePosition extends TokenImage {
  /** The index of the image's first placeholder. */
  readonly at: number
}

/**
 * Returns the position of each image; undefined if the number of placeholders differs from that of the images' tokens.
 */
export function locateImages(
  ids: Int32Array,
  images: readonly TokenImage[],
  tokenId: number,
): ImagePosition[] | undefined {
  const wanted = images.reduce((sum, { tokens }) => sum + tokens, 0)
  if (ids.reduce((count, id) => count + Number(id === tokenId), 0) !== wanted) return undefined
  const runs = findImageRuns(ids, { tokenId, tokens: images.map(({ tokens }) => tokens) })
  return images.map((image, index) => ({ ...image, at: runs[index]!.offset }))
}

/**
 * The formats that all engines read. Other formats are disabled, because their readers are large and have had many
 * vulnerabilities.
 */
const READABLE_TYPES = new Set(['gif', 'jpg', 'png', 'webp'])
disableTypes(types.filter((type) => !READABLE_TYPES.has(type)))

/** The properties of an image that determine its token count and identify it. */
interface ImageInfo extends ImageSize {
  /** The digest of the image's bytes, in hexadecimal. */
  readonly sha256: string
  readonly mediaType: string
}

/**
 * Reads an image's size, type and digest.
 * @param param the image's path in the request
 * @throws ProxyError `unsupported` for a URL other than a `data:` URL, `invalid_request` for bytes that are not an
 *   image
 */
export function readImage(url: string | undefined, param: string): ImageInfo {
  const data = url === undefined ? undefined : splitDataUrl(url)
  if (data === undefined) {
    const message = 'in token mode an image must be a data: URL in base64: its size determines the prompt'
    throw new ProxyError('unsupported', message, { param })
  }
  const bytes = Buffer.from(data.base64, 'base64')
  const { width, height } = readSize(bytes, param)
  return { width, height, sha256: computeImageDigest(bytes), mediaType: data.mediaType }
}

/**
 * The number of bytes in which the size is searched for; profiles and previews may precede it. The limit bounds the
 * time for a broken image, which is searched byte by byte.
 */
const MAX_HEADER_BYTES = 512 * 1024

function readSize(bytes: Buffer, param: string): ImageSize {
  try {
    const { width, height } = imageSize(bytes.subarray(0, MAX_HEADER_BYTES))
    if (width > 0 && height > 0) return { width, height }
  } catch {
    // The error below is the same for all defects.
  }
  throw new ProxyError('invalid_request', 'this is not a PNG, JPEG, WebP or GIF image', { param })
}
