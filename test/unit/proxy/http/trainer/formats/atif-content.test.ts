/** Message content in ATIF. */
import t from 'tap'
import { toAtifContent } from '../../../../../../src/proxy/http/trainer/formats/atif-content.ts'

const image = (url: string) => ({ type: 'image_url', image_url: { url } })

t.test('the type of an image is that of the extension in its URL', async (t) => {
  const getType = (url: string) => {
    const [part] = toAtifContent([image(url), { text: 'x' }])
    return typeof part === 'object' && part.type === 'image' ? part.source.media_type : undefined
  }
  t.equal(getType('https://example.com/a.PNG'), 'image/png')
  t.equal(getType('https://example.com/a.b.jpg?size=1.5'), 'image/jpeg')
  t.equal(getType('https://example.com/a.webp#.png'), 'image/webp')
  t.equal(getType('https://example.com/show?file=a.gif'), 'image/gif')
  t.equal(getType('https://example.com/a.txt'), undefined)
})

t.test('a URL with a million extensions is read in linear time', async (t) => {
  const url = `https://example/${'.x?'.repeat(1_000_000)}\n`
  t.equal(toAtifContent([image(url)]), `[image at ${url}]`)
})
