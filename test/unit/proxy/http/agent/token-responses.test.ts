import { text } from 'node:stream/consumers'
import fc from 'fast-check'
import t from 'tap'
import { loadEmbeddedTokenizer } from '../../../../../src/embedded/engine/embedded-model.ts'
import { writeText, writeTokens } from '../../../../../src/proxy/http/agent/token-responses.ts'
import { limitRuns } from '../../../../helpers/tier.ts'

const TOKENIZER = loadEmbeddedTokenizer()

/** Ids of tokens, of parts of characters and of no token, so that slices end within characters. */
function createIds(length: number, seed = 1): number[] {
  return Array.from({ length }, (_, index) => (index * 7_919 * seed) % (TOKENIZER.vocabSize + 3))
}

/** Returns a text, and the number of iterations of the event loop in which it was written. */
async function readCounting(parts: AsyncIterable<string>): Promise<{ json: string; iterations: number }> {
  let iterations = 0
  let isDone = false
  const count = () => {
    if (isDone) return
    iterations += 1
    setImmediate(count)
  }
  setImmediate(count)
  const json = await text(parts)
  isDone = true
  return { json, iterations }
}

t.test('ids, their texts and their decoded text are complete', async (t) => {
  const property = fc.asyncProperty(
    fc.constantFrom(0, 1, 8_191, 8_192, 8_193, 20_000),
    fc.integer({ min: 1, max: 1_000 }),
    async (length, seed) => {
      const tokens = createIds(length, seed)
      const written = await text(writeTokens(Int32Array.from(tokens), 512, TOKENIZER))
      const token_strs = tokens.map((id) => TOKENIZER.idToToken(id) ?? '')
      t.strictSame(JSON.parse(written), { count: length, max_model_len: 512, tokens, token_strs })
      const decoded = await text(writeText(tokens, TOKENIZER))
      t.strictSame(JSON.parse(decoded), { prompt: TOKENIZER.decode(tokens) })
    },
  )
  await fc.assert(property, { numRuns: limitRuns(20) })
  t.equal(
    await text(writeTokens([1, 2], undefined)),
    '{"count":2,"max_model_len":null,"tokens":[1,2],"token_strs":null}',
  )
})

t.test('other tasks run between the parts of a response', async (t) => {
  const tokens = createIds(200_000)
  for (const parts of [writeTokens(tokens, 512, TOKENIZER), writeText(tokens, TOKENIZER)]) {
    const { json, iterations } = await readCounting(parts)
    t.ok(json.length > tokens.length)
    t.ok(iterations >= 20, `${iterations} iterations of the event loop`)
  }
})
