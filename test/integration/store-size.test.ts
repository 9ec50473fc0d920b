import { statSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { toPromptChunks } from '../../src/proxy/session/prompts/prompt-chunks.ts'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { aTurn, createSession, record } from '../conformance/turn-store.ts'
import { inProcess } from '../helpers/store-in-process.ts'

const TURNS = 100
const QUESTION_CHARS = 1200
const COMPLETION_CHARS = 800
/** New prompt ids and completion ids of a turn: about four characters per token. */
const NEW_PROMPT_IDS = 300
const COMPLETION_IDS = 200

/** Text without repeats, so that only the store's own layout can make it small. */
const getText = (seed: number, chars: number) => {
  let text = ''
  for (let index = 0; text.length < chars; index += 1)
    text += (((seed * 1_000_003 + index) * 2_654_435_761) % 2 ** 32).toString(36)
  return text.slice(0, chars)
}

/** The new data of a session's turns, once: text as UTF-8, four bytes per id, four bytes per logprob. */
const NET_BYTES = TURNS * (QUESTION_CHARS + COMPLETION_CHARS + 4 * (NEW_PROMPT_IDS + 2 * COMPLETION_IDS))

/** @returns bytes on disk after a session whose first message in each turn is `system` */
async function measureBytesOnDisk(path: string, system: (index: number) => string): Promise<number> {
  const store = await openSqliteStore({ path, durability: 'process', spawn: inProcess })
  await store.createSession(createSession('s'))
  const messages: string[] = []
  const sequence: number[] = []
  for (let index = 0; index < TURNS; index += 1) {
    messages.push(JSON.stringify({ role: 'user', content: getText(index, QUESTION_CHARS) }))
    for (let i = 0; i < NEW_PROMPT_IDS; i += 1) sequence.push((index * 7919 + i * 104_729) % 150_000)
    const completion = Array.from({ length: COMPLETION_IDS }, (_, i) => (index * 31 + i * 1299) % 150_000)
    const completionText = getText(index + 1000, COMPLETION_CHARS)
    await record(
      store,
      aTurn(`0196f7a0-0000-7000-8000-${String(index).padStart(12, '0')}`, {
        index,
        requestMessages: [JSON.stringify({ role: 'system', content: system(index) }), ...messages],
      }),
      {
        completionText,
        promptTokenIds: Int32Array.from(sequence),
        completionTokenIds: Int32Array.from(completion),
        completionLogprobs: Float64Array.from(completion, (id) => Math.fround(-id / 1000)),
      },
    )
    messages.push(JSON.stringify({ role: 'assistant', content: completionText }))
    sequence.push(...completion)
  }
  await store.close()
  return statSync(path).size
}

t.test('a session takes at most three times what is new in its turns', async (t) => {
  const bytes = await measureBytesOnDisk(join(t.testdir(), 'turns.db'), () => 'You are helpful.')
  t.comment(
    `${bytes} bytes for ${NET_BYTES} bytes of text, ids and logprobs: ${(bytes / NET_BYTES).toFixed(2)}`,
  )
  t.ok(bytes <= 3 * NET_BYTES)
})

t.test('so does a session whose agent edits its first message on every request', async (t) => {
  const bytes = await measureBytesOnDisk(join(t.testdir(), 'turns.db'), (index) => `It is ${index} o'clock.`)
  t.comment(`${bytes} bytes for ${NET_BYTES}: ${(bytes / NET_BYTES).toFixed(2)}`)
  t.ok(bytes <= 3 * NET_BYTES)
})

for (const [sent, conversations] of [
  ['one prompt that grows', 1],
  ['two prompts that grow by turns', 2],
] as const) {
  t.test(`so does one whose agent sends ${sent}, as token ids`, async (t) => {
    const path = join(t.testdir(), 'turns.db')
    const store = await openSqliteStore({ path, durability: 'process', spawn: inProcess })
    await store.createSession(createSession('s'))
    const prompts = Array.from({ length: conversations }, (_, index): number[] => [index])
    for (let index = 0; index < TURNS; index += 1) {
      const prompt = prompts[index % conversations]!
      for (let i = 0; i < NEW_PROMPT_IDS; i += 1) prompt.push((index * 7919 + i * 104_729) % 150_000)
      const completion = Array.from({ length: COMPLETION_IDS }, (_, i) => (index * 31 + i * 1299) % 150_000)
      const turn = aTurn(`t${index}`, {
        index,
        dialect: 'completions',
        requestMessages: [],
        promptPieces: toPromptChunks(prompt),
      })
      await record(store, turn, {
        completionText: getText(index + 1000, COMPLETION_CHARS),
        promptTokenIds: Int32Array.from(prompt),
        completionTokenIds: Int32Array.from(completion),
        completionLogprobs: Float64Array.from(completion, (id) => Math.fround(-id / 1000)),
      })
      prompt.push(...completion)
    }
    await store.close()
    const bytes = statSync(path).size
    // As JSON, an id takes up to seven bytes.
    const net = TURNS * (COMPLETION_CHARS + (4 + 7) * (NEW_PROMPT_IDS + COMPLETION_IDS) + 4 * COMPLETION_IDS)
    t.comment(`${bytes} bytes for ${net}: ${(bytes / net).toFixed(2)}`)
    t.ok(bytes <= 3 * net)
  })
}
