import t, { type Test } from 'tap'
import {
  INLINE_LIMIT_CHARS,
  TokenizerPool,
  type TokenizerPoolOptions,
} from '../../../src/proxy/tokens/tokenizer/pool.ts'
import { loadRealTokenizer, modelDirectory } from '../../unit/tokens/real-models.ts'

const tokenizer = loadRealTokenizer('qwen3')
const LONG = 'How long is a text? — 你好，世界。\n'.repeat(200)

function startPool(
  t: Test,
  options?: TokenizerPoolOptions,
  directory = modelDirectory('qwen3'),
): TokenizerPool {
  const pool = new TokenizerPool(tokenizer, directory, options)
  t.teardown(() => pool.close())
  return pool
}

t.test('long and short texts have the ids that the tokenizer gives them', async (t) => {
  const pool = startPool(t, { threads: 2 })
  const texts = ['', 'Hi', LONG, `${LONG}<|im_end|>`, 'x'.repeat(INLINE_LIMIT_CHARS), LONG.slice(1)]
  const all = await Promise.all(texts.map((text) => pool.encode(text)))
  for (const [index, text] of texts.entries()) t.same(all[index], tokenizer.encode(text))
  const llama = loadRealTokenizer('llama3_2')
  const llamaPool = new TokenizerPool(llama, modelDirectory('llama3_2'))
  t.teardown(() => llamaPool.close())
  t.equal((await llamaPool.encode(LONG, { addSpecialTokens: true }))[0], llama.bosTokenId)
})

t.test('the event loop turns while a long text is tokenized', async (t) => {
  const pool = startPool(t)
  await pool.encode(LONG)
  let turns = 0
  let done = false
  const turn = () => {
    turns++
    if (!done) setImmediate(turn)
  }
  setImmediate(turn)
  await pool.encode(LONG.repeat(30))
  done = true
  t.ok(turns > 10, `${turns} turns`)
})

t.test('when too many texts wait, the next is refused at once', async (t) => {
  const pool = startPool(t, { threads: 1, maxQueued: 1 })
  const served = pool.encode(LONG)
  const waiting = pool.encode(LONG)
  await t.rejects(pool.encode(LONG), { code: 'queue_full', status: 503, retryAfterS: 1 })
  t.same(await pool.encode('Hi'), tokenizer.encode('Hi'), 'a short text does not wait')
  t.same(await served, await waiting)
  t.same(await pool.encode(LONG), await served, 'there is room again')
})

t.test('a closed pool fails what is not done', async (t) => {
  const pool = startPool(t)
  const served = t.rejects(pool.encode(LONG), { code: 'shutting_down' })
  const waiting = t.rejects(pool.encode(LONG), { code: 'shutting_down' })
  await pool.close()
  await Promise.all([served, waiting])
  await t.rejects(pool.encode(LONG), { code: 'shutting_down' })
})

t.test('a thread that dies fails its text, and each further text tries anew', async (t) => {
  const pool = startPool(t, { threads: 1 }, t.testdir({}))
  const died = { code: 'internal', cause: { message: /tokenizer\.json/ } }
  await Promise.all([t.rejects(pool.encode(LONG), died), t.rejects(pool.encode(LONG), died)])
  await t.rejects(pool.encode(LONG), died)
})
