/** Converts message content to ATIF (`harbor/models/trajectories/content.py` of Harbor 0.25.0). */
import { splitDataUrl } from '../../../../protocol/canonical/images.ts'

/** A part of message content in ATIF. */
export type AtifPart =
  | { type: 'text'; text: string }
  | { type: 'image'; source: { media_type: string; path: string } }

const MEDIA_TYPES: Readonly<Record<string, string>> = {
  jpg: 'image/jpeg',
  jpeg: 'image/jpeg',
  png: 'image/png',
  gif: 'image/gif',
  webp: 'image/webp',
}

/**
 * Converts content. Content with only text becomes one text. An image with a URL becomes a part with this URL. An image
 * in the message becomes a text that describes it, because the path of an image in ATIF refers to a file beside the
 * trajectory, and no such file is written.
 */
export function toAtifContent(content: unknown): string | AtifPart[] {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return content === null || content === undefined ? '' : JSON.stringify(content)
  const parts = content.map(toAtifPart)
  const texts = parts.flatMap((part) => (part.type === 'text' ? [part.text] : []))
  return texts.length === parts.length ? texts.join('\n') : parts
}

function toAtifPart(part: unknown): AtifPart {
  const {
    type,
    text,
    image_url: image,
  } = Object(part) as {
    type?: unknown
    text?: unknown
    image_url?: { url?: unknown }
  }
  if (typeof text === 'string') return { type: 'text', text }
  const url = type === 'image_url' ? image?.url : undefined
  if (typeof url !== 'string') return { type: 'text', text: JSON.stringify(part) }
  const data = splitDataUrl(url)
  if (data) return { type: 'text', text: `[${data.mediaType}, in the record]` }
  const ending = /\.(\w+)(?:[?#]|$)/.exec(url)?.[1]?.toLowerCase()
  const mediaType = ending === undefined ? undefined : MEDIA_TYPES[ending]
  return mediaType === undefined
    ? { type: 'text', text: `[image at ${url}]` }
    : { type: 'image', source: { media_type: mediaType, path: url } }
}
