import fc from 'fast-check'
import t from 'tap'
import { extractBlobs, insertBlobs } from '../../../../../src/proxy/store/common/blobs.ts'

const PICTURE = Buffer.from(Uint8Array.from({ length: 3_001 }, (_, index) => (index * 7919) % 251))

const messageWith = (...urls: string[]) =>
  JSON.stringify({
    role: 'user',
    content: urls.flatMap((url) => [
      { type: 'image_url', image_url: { url } },
      { type: 'text', text: 'Seen "it"?' },
    ]),
  })

const toDataUrl = (bytes: Uint8Array) => `data:image/png;base64,${Buffer.from(bytes).toString('base64')}`

t.test('a message is divided into its text and the bytes of its images, in order', async (t) => {
  const other = PICTURE.subarray(1)
  const message = messageWith(toDataUrl(PICTURE), toDataUrl(other))
  const extracted = extractBlobs(message)!
  t.strictSame(extracted.blobs, [PICTURE, Buffer.from(other)])
  t.equal(extracted.literals.length, 3)
  t.equal(insertBlobs(extracted), message)
})

t.test('only bytes with the same base64 encoding are extracted', async (t) => {
  const url = toDataUrl(PICTURE)
  t.ok(url.endsWith('=='), 'with padding, and four unused bits in the last digit')
  for (const [change, changed] of [
    ['without padding', url.slice(0, -2)],
    ['with bits in the last digit', `${url.slice(0, -3)}B==`],
    ['of base64url', url.replaceAll('+', '-').replaceAll('/', '_')],
    ['with a space', `${url.slice(0, 2_000)} ${url.slice(2_000)}`],
    ['with a line break', `${url.slice(0, 2_000)}\n${url.slice(2_000)}`],
    ['short', toDataUrl(PICTURE.subarray(0, 100))],
  ] as const) {
    t.equal(extractBlobs(messageWith(changed)), undefined, change)
    t.match(extractBlobs(messageWith(changed, url)), { blobs: { length: 1 } }, `${change}, beside another`)
  }
  t.equal(extractBlobs(`"${url}`), undefined, 'a text that does not end')
})

t.test('for any text, its parts restore it', async () => {
  const url = fc
    .tuple(
      fc.uint8Array({ minLength: 700, maxLength: 900 }),
      fc.constantFrom('', '=', ' ', '\\', 'é', '\ud800'),
    )
    .map(([bytes, after]) => toDataUrl(bytes) + after)
  const text = fc.oneof(url, fc.string({ unit: 'binary' }), fc.constantFrom('"', ';base64,', '\ud800'))
  fc.assert(
    fc.property(fc.array(text), fc.boolean(), (texts, asJson) => {
      const full = asJson ? JSON.stringify(texts) : texts.join('')
      const extracted = extractBlobs(full)
      // The literals are stored as JSON.
      return extracted === undefined || insertBlobs(JSON.parse(JSON.stringify(extracted), revive)) === full
    }),
  )
})

function revive(_name: string, value: unknown): unknown {
  const isBytes = typeof value === 'object' && value !== null && 'type' in value && value.type === 'Buffer'
  return isBytes ? Buffer.from((value as unknown as { data: number[] }).data) : value
}
