/** What of an image decides how many tokens it has: its sides, read from its first bytes. */
import { disableTypes, imageSize, types } from 'image-size'
import { ProxyError } from '../../../base/errors.ts'
import { imageDigest, splitDataUrl } from '../../../protocol/canonical/images.ts'
import type { ImageSide } from './smart-resize.ts'

/**
 * What every engine reads. Others are not looked at: their formats are large, and so were the faults of their readers.
 */
const READ = new Set(['gif', 'jpg', 'png', 'webp'])
disableTypes(types.filter((type) => !READ.has(type)))

export interface ReadImage extends ImageSide {
  /** Of its bytes, in hexadecimal. */
  readonly sha256: string
  readonly mediaType: string
}

/**
 * @param param the image's path in the request
 * @throws ProxyError `unsupported` for another address than a `data:` URL, `invalid_request` for bytes that are no
 *   image
 */
export function readImage(url: string | undefined, param: string): ReadImage {
  const data = url === undefined ? undefined : splitDataUrl(url)
  if (data === undefined) {
    const message = 'in token mode an image is a data: URL in base64: its size decides the prompt'
    throw new ProxyError('unsupported', message, { param })
  }
  const bytes = Buffer.from(data.base64, 'base64')
  const { width, height } = sidesOf(bytes, param)
  return { width, height, sha256: imageDigest(bytes), mediaType: data.mediaType }
}

function sidesOf(bytes: Buffer, param: string): ImageSide {
  try {
    const { width, height } = imageSize(bytes)
    if (width > 0 && height > 0) return { width, height }
  } catch {
    // Told below, in one way for all that is wrong with it.
  }
  throw new ProxyError('invalid_request', 'this is no PNG, JPEG, WebP or GIF image', { param })
}
