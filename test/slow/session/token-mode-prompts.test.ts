/** Prompts of large models and long ones, in token mode. */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import t from 'tap'
import type { ChatMessage } from '../../../src/protocol/canonical/messages.ts'
import type { TurnRecord } from '../../../src/proxy/store/port/turn-store.ts'
import { openTokenModel } from '../../../src/proxy/tokens/model/token-model.ts'
import { createTokenModeRig } from '../../helpers/token-mode-rig.ts'
import { loadTokenModel } from '../../unit/proxy/session/conversation-player.ts'
import { modelDirectory } from '../../unit/proxy/tokens/real-models.ts'

t.test(
  'a developer message is rendered as a system message where the template has no developer role',
  async (t) => {
    const messages: ChatMessage[] = [
      { role: 'developer', content: 'Be brief.' },
      { role: 'user', content: 'Hello.' },
    ]
    for (const [name, shown] of [
      ['qwen2_5', '<|im_start|>system\nBe brief.<|im_end|>'],
      ['deepseek_v3', '<｜begin▁of▁sentence｜>Be brief.<｜User｜>'],
      ['llama3_2', '<|start_header_id|>developer<|end_header_id|>\n\nBe brief.<|eot_id|>'],
      ['gemma3', '<start_of_turn>user\nBe brief.\n\nHello.<end_of_turn>'],
    ] as const) {
      const model = loadTokenModel(name)
      const { promptTokenIds } = await (
        await createTokenModeRig(t, model, () => ({ text: 'I see.' }))
      ).sendRequest(messages)
      t.ok(model.tokenizer.decode(promptTokenIds).includes(shown), name)
    }
  },
)

t.test('a prompt of 128,000 tokens leaves the event loop to others', { timeout: 60_000 }, async (t) => {
  const model = await openTokenModel({ source: modelDirectory('qwen3'), parser: 'auto' })
  t.teardown(() => model.close())
  const { sendRequest } = await createTokenModeRig(t, model, () => ({ text: 'I see.' }))
  const messages = longConversation(128_000)
  // Compiles the code and loads the tokenizer of the prompt thread, as in a running proxy.
  await sendRequest([{ role: 'user', content: 'Warm up.' }, ...messages.slice(1)])
  const first = await longestBlockMs(() => sendRequest(messages))
  const added: ChatMessage[] = [
    { role: 'assistant', content: 'I see.' },
    { role: 'user', content: 'Go on.' },
  ]
  const extended = await longestBlockMs(() => sendRequest([...messages, ...added]))
  t.comment(`blocked for ${first.toFixed(1)} ms at first, ${extended.toFixed(1)} ms when it was extended`)
  // Ten times the expected time; tokenizing on this thread alone would block for twice as long.
  t.ok(Math.max(first, extended) < 100)
})

/** Measures the longest iteration of the event loop in CPU time of this thread, independent of other load. */
async function longestBlockMs(render: () => Promise<TurnRecord>): Promise<number> {
  let [longest, lastMs, running] = [0, threadMs(), true]
  const measure = () => {
    longest = Math.max(longest, threadMs() - lastMs)
    lastMs = threadMs()
    if (running) setImmediate(measure)
  }
  setImmediate(measure)
  const { promptTokenIds } = await render()
  assert.ok(promptTokenIds.length > 128_000)
  await new Promise(setImmediate)
  running = false
  return longest
}

function threadMs(): number {
  const { user, system } = process.threadCpuUsage()
  return (user + system) / 1000
}

/** Creates a conversation from this repository's documentation. */
function longConversation(tokens: number): ChatMessage[] {
  const text = readFileSync(new URL('../../../docs/token-mode.md', import.meta.url), 'utf8')
  const bytes = tokens * 5
  return Array.from({ length: Math.ceil(bytes / 2_000) | 1 }, (_, i): ChatMessage => {
    const index = (i * 997) % (text.length - 2_000)
    return { role: i % 2 === 0 ? 'user' : 'assistant', content: text.slice(index, index + 2_000) }
  })
}
