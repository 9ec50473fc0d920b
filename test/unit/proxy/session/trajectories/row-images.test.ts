import fc from 'fast-check'
import t from 'tap'
import type { RowImage } from '../../../../../src/protocol/schema/row.ts'
import {
  moveBeginAfterImage,
  moveEndBeforeImage,
  SessionImages,
  selectImages,
} from '../../../../../src/proxy/session/trajectories/row-images.ts'

const image = (index: number, tokens: number): RowImage => ({
  sha256: `of ${index}`,
  media_type: 'image/png',
  width: 28,
  height: 28,
  at: index,
  tokens,
})

/** Images with gaps between them, some without tokens: each `[gap, tokens]`. */
const imagesInOrder = fc
  .array(fc.tuple(fc.nat(3), fc.integer({ min: 1, max: 4 })), { maxLength: 5 })
  .map((parts) => {
    let end = 0
    return parts.map(([gap, tokens]) => {
      const positioned = image(end + gap, tokens)
      end = positioned.at + tokens
      return positioned
    })
  })

t.test('no row begins or ends within an image, and each row lists its complete images', async (t) => {
  fc.assert(
    fc.property(imagesInOrder, fc.nat(40), fc.nat(40), (images, one, other) => {
      // The image of each token.
      const owners = images.flatMap((positioned) =>
        Array.from({ length: positioned.tokens }, (_, i) => [positioned.at + i, positioned] as const),
      )
      const ownerOf = new Map(owners)
      const isCut = (index: number) => ownerOf.has(index) && ownerOf.get(index) === ownerOf.get(index - 1)
      let end = one
      while (isCut(end)) end -= 1
      let begin = one
      while (isCut(begin)) begin += 1
      t.equal(moveEndBeforeImage(images, one), end)
      t.equal(moveBeginAfterImage(images, one), begin)
      const [from, to] = [Math.min(one, other), Math.max(one, other)]
      const full = images.filter(({ at: index, tokens }) =>
        Array.from({ length: tokens }, (_, i) => index + i).every(
          (position) => position >= from && position < to,
        ),
      )
      t.strictSame(
        selectImages(images, from, to),
        full.map((positioned) => ({ ...positioned, at: positioned.at - from })),
      )
    }),
  )
})

t.test('a prompt has the images of the one that it extends, followed by its own', async (t) => {
  const images = new SessionImages()
  const add = (turnId: string, prompt: object) =>
    images.add({ turnId, annotations: JSON.stringify({ prompt }) })
  const [first, second] = [image(1, 2), image(5, 3)]
  t.strictSame(add('before', {}), [])
  t.strictSame(add('a', { images: [first] }), [first])
  t.strictSame(add('b', { from: 'a' }), [])
  t.strictSame(add('c', { from: 'b', images: [second] }), [second])
  t.strictSame(add('d', { from: 'before' }), [])
  t.strictSame(
    ['before', 'a', 'b', 'c', 'd'].map((turnId) => images.getImages(turnId)),
    [[], [first], [first], [first, second], []],
  )
})
