import { brotliCompressSync, deflateSync, gzipSync, zstdCompressSync } from 'node:zlib'
import t from 'tap'
import { decodeBody } from '../../../../../src/proxy/http/transport/content-coding.ts'

const LIMIT = 8 * 1024 ** 2
const BODY = Buffer.from(
  JSON.stringify({ messages: [{ role: 'user', content: 'What is a lake? '.repeat(500) }] }),
)

t.test('every coding of released clients is decoded, alone and in sequence', async (t) => {
  const coded: [encoding: string | undefined, body: Buffer][] = [
    [undefined, BODY],
    ['identity', BODY],
    ['gzip', gzipSync(BODY)],
    ['X-GZIP', gzipSync(BODY)],
    ['deflate', deflateSync(BODY)],
    ['br', brotliCompressSync(BODY)],
    ['zstd', zstdCompressSync(BODY)],
    ['gzip, zstd', zstdCompressSync(gzipSync(BODY))],
  ]
  for (const [encoding, body] of coded)
    t.strictSame(await decodeBody(body, encoding, LIMIT), BODY, encoding ?? 'none')
})

t.test('an unknown coding is a 415 that names the supported ones', async (t) => {
  for (const encoding of ['compress', 'gzip, lz4', '__proto__', 'gzip, gzip, gzip'])
    await t.rejects(
      decodeBody(BODY, encoding, LIMIT),
      { code: 'unsupported', status: 415, message: /zstd/ },
      encoding,
    )
})

t.test('malformed and truncated data are invalid requests', async (t) => {
  for (const [encoding, body] of [
    ['gzip', BODY],
    ['gzip', gzipSync(BODY).subarray(0, 40)],
    ['br', brotliCompressSync(BODY).subarray(0, 20)],
    ['zstd', zstdCompressSync(BODY).subarray(0, 40)],
    ['deflate', Buffer.alloc(0)],
  ] as const) {
    await t.rejects(decodeBody(body, encoding, LIMIT), { code: 'invalid_request' }, encoding)
  }
})

t.test('the decoded size is limited, as is its ratio to the encoded size above 1 MiB', async (t) => {
  const limited = decodeBody(gzipSync(Buffer.alloc(LIMIT + 1, 'ab')), 'gzip', LIMIT)
  await t.rejects(limited, { code: 'body_too_large' })
  const bomb = brotliCompressSync(Buffer.alloc(4 * 1024 ** 2))
  await t.rejects(decodeBody(bomb, 'br', LIMIT), { code: 'body_too_large', message: /200 times/ })
  const small = await decodeBody(brotliCompressSync(Buffer.alloc(1024 ** 2)), 'br', LIMIT)
  t.equal(small.length, 1024 ** 2, 'a small body may have any ratio')
})
