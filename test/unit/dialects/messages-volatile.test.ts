import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { removeVolatile, VOLATILE_RULES } from '../../../src/proxy/dialects/common/volatile.ts'

const header = 'x-anthropic-billing-header: cc_version=2.1.329.3f1; cc_entrypoint=sdk-cli; cch=00000;'

t.test("Claude Code's accounting goes, as a block and as a first line", async (t) => {
  t.same(removeVolatile([header, 'You are'], VOLATILE_RULES), {
    texts: ['You are'],
    removed: [{ rule: 'claude_code_billing_header', text: header }],
  })
  t.same(removeVolatile([`${header}\nYou are`], VOLATILE_RULES), {
    texts: ['You are'],
    removed: [{ rule: 'claude_code_billing_header', text: `${header}\n` }],
  })
})

t.test('a prompt that only speaks of it stays as it is', async (t) => {
  for (const text of [`Never send ${header}`, `One\n${header}`, '', 'x-anthropic-billing']) {
    t.same(removeVolatile([text], VOLATILE_RULES), { texts: [text], removed: [] })
  }
})

t.test('without rules nothing is touched', async (t) => {
  t.same(removeVolatile([header, ''], []), { texts: [header, ''], removed: [] })
})

t.test('what is left and what was removed are the whole prompt', async (t) => {
  const block = fc.oneof(
    fc.string(),
    fc.string().map((rest) => `${header}\n${rest}`),
  )
  fc.assert(
    fc.property(fc.array(block), (blocks) => {
      const { texts, removed } = removeVolatile(blocks, VOLATILE_RULES)
      const lengthOf = (list: readonly string[]) => list.join('').length
      assert.equal(lengthOf(texts) + lengthOf(removed.map(({ text }) => text)), lengthOf(blocks))
      assert.deepEqual(removeVolatile(texts, VOLATILE_RULES).removed, [], 'once is enough')
    }),
  )
  t.pass('for any prompt')
})
