/** Decodes the content codings of request bodies (RFC 9110, section 8.4). Codex and other clients compress requests. */
import { promisify } from 'node:util'
import { brotliDecompress, gunzip, inflate, type ZlibOptions, zstdDecompress } from 'node:zlib'
import { ProxyError } from '../../../base/errors.ts'

type Decode = (body: Buffer, options: ZlibOptions) => Promise<Buffer>

/** The decoders by coding. They run on libuv's threads, not on the event loop. */
const DECODERS: Readonly<Record<string, Decode>> = {
  gzip: promisify<Buffer, ZlibOptions, Buffer>(gunzip),
  'x-gzip': promisify<Buffer, ZlibOptions, Buffer>(gunzip),
  deflate: promisify<Buffer, ZlibOptions, Buffer>(inflate),
  br: promisify(brotliDecompress) as Decode,
  zstd: promisify(zstdDecompress) as Decode,
}

/** The maximum number of codings. Clients apply one, seldom two; each further one multiplies the work. */
const MAX_CODINGS = 2

/**
 * The maximum ratio of a decoded body above {@link FREE_BYTES} to its compressed size. Conversations, which repeat
 * themselves, compress up to about 50 times; a body with a higher ratio was made to exhaust memory.
 */
const MAX_RATIO = 200
/** The size up to which a decoded body may have any ratio. */
const FREE_BYTES = 1024 ** 2

/**
 * Decodes a body.
 * @param encoding the `Content-Encoding` header
 * @param limitBytes the maximum size of the decoded body
 * @throws ProxyError `unsupported` (415) for an unknown coding, `body_too_large`, `invalid_request` for malformed data
 */
export async function decodeBody(
  body: Buffer,
  encoding: string | undefined,
  limitBytes: number,
): Promise<Buffer> {
  const codings = parseCodings(encoding)
  let decoded = body
  // The header lists codings in the order in which they were applied.
  for (const coding of codings.reverse()) decoded = await decode(decoded, coding, limitBytes)
  return decoded
}

function parseCodings(encoding = ''): string[] {
  const names = encoding.split(',').map((name) => name.trim().toLowerCase())
  const codings = names.filter((name) => name !== '' && name !== 'identity')
  if (codings.length <= MAX_CODINGS && codings.every((name) => Object.hasOwn(DECODERS, name))) return codings
  const message = `A body with content-encoding '${encoding.slice(0, 100)}' is not supported: use gzip, deflate, br, zstd or none`
  throw new ProxyError('unsupported', message, { status: 415 })
}

async function decode(body: Buffer, coding: string, limitBytes: number): Promise<Buffer> {
  const maxOutputLength = Math.min(limitBytes, Math.max(FREE_BYTES, body.length * MAX_RATIO))
  try {
    return await DECODERS[coding]!(body, { maxOutputLength })
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ERR_BUFFER_TOO_LARGE')
      throw new ProxyError('invalid_request', `The request body is not valid ${coding} data`)
    throw new ProxyError(
      'body_too_large',
      `The decoded request body is larger than ${maxOutputLength} bytes: at most ${limitBytes} bytes and ${MAX_RATIO} times the ${coding} data are accepted`,
    )
  }
}
