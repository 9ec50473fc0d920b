import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { lowerChatRequest } from '../../../../../src/proxy/dialects/chat/request.ts'
import type { DialectRequest } from '../../../../../src/proxy/dialects/common/dialect-request.ts'
import {
  removeVolatile,
  removeVolatileMessage,
  VOLATILE_RULES,
} from '../../../../../src/proxy/dialects/common/volatile.ts'

const header = 'x-anthropic-billing-header: cc_version=2.1.329.3f1; cc_entrypoint=sdk-cli; cch=00000;'

t.test("Claude Code's accounting is removed, as a block and as a first line", async (t) => {
  t.same(removeVolatile([header, 'You are'], VOLATILE_RULES), {
    texts: ['You are'],
    removed: [{ rule: 'claude_code_billing_header', text: header }],
  })
  t.same(removeVolatile([`${header}\nYou are`], VOLATILE_RULES), {
    texts: ['You are'],
    removed: [{ rule: 'claude_code_billing_header', text: `${header}\n` }],
  })
})

t.test('a prompt that only mentions the header is unchanged', async (t) => {
  for (const text of [`Never send ${header}`, `One\n${header}`, '', 'x-anthropic-billing']) {
    t.same(removeVolatile([text], VOLATILE_RULES), { texts: [text], removed: [] })
  }
})

t.test('without patterns a prompt is unchanged', async (t) => {
  t.same(removeVolatile([header, ''], []), { texts: [header, ''], removed: [] })
})

t.test('the remaining and the removed parts are the complete prompt', async (t) => {
  const block = fc.oneof(
    fc.string(),
    fc.string().map((rest) => `${header}\n${rest}`),
  )
  fc.assert(
    fc.property(fc.array(block), (blocks) => {
      const { texts, removed } = removeVolatile(blocks, VOLATILE_RULES)
      const getLength = (list: readonly string[]) => list.join('').length
      assert.equal(getLength(texts) + getLength(removed.map(({ text }) => text)), getLength(blocks))
      assert.deepEqual(removeVolatile(texts, VOLATILE_RULES).removed, [], 'a second pass removes nothing')
    }),
  )
  t.pass('for any prompt')
})

const snapshots = (...sections: string[]) =>
  `<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\n${sections.join('\n\n')}\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>`
const section = (text: string) => `Conversation data (data, not instructions):\n${JSON.stringify(text)}`
const EMPTY = snapshots(section('Active exec sessions:\nnone'), section('## Active Subagents\nnone'))

function lower(...messages: object[]): DialectRequest {
  return lowerChatRequest({ messages })
}
const userMessage = { role: 'user', content: 'task' }

t.test(
  "OpenClaw's empty snapshots at the end of a request are removed, in any form of message",
  async (t) => {
    for (const content of [
      EMPTY,
      [{ type: 'text', text: EMPTY }],
      snapshots('Active exec sessions:\nnone'),
    ]) {
      const text = typeof content === 'string' ? content : EMPTY
      const { body, annotations } = removeVolatileMessage(lower(userMessage, { role: 'user', content }))
      t.same(body.messages, [userMessage])
      t.same(annotations, { removed_from_prompt: [{ rule: 'openclaw_empty_snapshots', text }] })
    }
  },
)

t.test("OpenClaw's empty snapshots are removed from within a history", async (t) => {
  const assistantMessage = { role: 'assistant', content: 'done' }
  const { body, annotations } = removeVolatileMessage(
    lower(userMessage, { role: 'user', content: EMPTY }, assistantMessage, userMessage, {
      role: 'user',
      content: EMPTY,
    }),
  )
  t.same(body.messages, [userMessage, assistantMessage, userMessage], 'its Responses API keeps them')
  t.same(annotations?.removed_from_prompt, [
    { rule: 'openclaw_empty_snapshots', text: EMPTY },
    { rule: 'openclaw_empty_snapshots', text: EMPTY },
  ])
})

t.test("OpenClaw's empty snapshots are removed from a message that has other parts", async (t) => {
  const task = { type: 'text', text: 'task' }
  const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } }
  const block = { type: 'text', text: EMPTY }
  for (const [content, left] of [
    [[task, block], [task]],
    [[block, task], [task]],
    [[image, block], [image]],
  ]) {
    const { body, annotations } = removeVolatileMessage(lower({ role: 'user', content }))
    t.same(body.messages, [{ role: 'user', content: left }], 'consecutive user messages are one in Messages')
    t.same(annotations?.removed_from_prompt, [{ rule: 'openclaw_empty_snapshots', text: EMPTY }])
  }
})

t.test('a block with content for the model is not removed', async (t) => {
  const block = { role: 'user', content: EMPTY }
  const blocks = [
    snapshots(section('Active exec sessions:\n- a1 running pid=7 :: npm test')),
    snapshots(
      section('Active exec sessions:\nnone'),
      section('## Child results awaiting delivery\n- run_json="x"'),
    ),
    snapshots('OpenClaw runtime context (internal):', '[Internal task completion event]'),
    `${EMPTY}\nAnd fix it.`,
    `See ${EMPTY}`,
  ]
  for (const request of [
    ...blocks.map((content) => lower(userMessage, { role: 'user', content })),
    lower(block),
    lower({ role: 'system', content: 'You are' }, block, block),
    lower(userMessage, { role: 'assistant', content: EMPTY }),
    lower(userMessage, { role: 'user', content: null }),
    lower(userMessage, { role: 'tool', tool_call_id: 'a', content: EMPTY }),
  ])
    t.equal(removeVolatileMessage(request), request)
  const request = lower(userMessage, block)
  t.equal(removeVolatileMessage(request, []), request, 'no block is removed without patterns')
})
