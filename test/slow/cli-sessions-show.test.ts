/**
 * `llm-proxy sessions show` prints conversations, from a proxy and from its database, without control characters.
 */
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { runLlmProxy } from '../helpers/llm-proxy.ts'
import { recordTurn, startSessionsApi } from '../helpers/sessions-api.ts'

const ids = (from: number, count: number) => Int32Array.from({ length: count }, (_, index) => from + index)

const EDIT = {
  id: 'a',
  type: 'function',
  function: {
    name: 'Edit',
    arguments: JSON.stringify({
      file_path: 'sea.py',
      old_string: 'depth = 3\n',
      new_string: 'depth = 4000\n',
    }),
  },
}
const TASK = JSON.stringify({ role: 'user', content: 'Mend the depth.' })
const COMPLETION = JSON.stringify({ role: 'assistant', content: 'I edit it.', tool_calls: [EDIT] })
const HOSTILE = '\u001b[2J\u001b[1;1Hsampled\n── turn 9\u0007\r\u009b31m'

async function recordSession(t: Test) {
  const db = join(t.testdir({}), 'turns.db')
  const api = await startSessionsApi(t, await openSqliteStore({ path: db, durability: 'process' }))
  await api.sessions.create({ sessionId: 'code' })
  await recordTurn(api.store, 'code', 0, {
    requestMessages: [TASK],
    params: '{"model":"m","temperature":0.5}',
    tools: JSON.stringify([{ type: 'function', function: { name: 'Edit', description: 'Edits a file.' } }]),
    promptTokenIds: ids(0, 20),
    reasoning: 'The sea is deep.',
    completionText: 'I edit it.',
    toolCalls: JSON.stringify([EDIT]),
  })
  await recordTurn(api.store, 'code', 1, {
    requestMessages: [
      TASK,
      COMPLETION,
      JSON.stringify({ role: 'tool', tool_call_id: 'a', content: Array(100).fill('ok').join('\n') }),
    ],
    promptTokenIds: ids(100, 20),
    completionText: HOSTILE,
  })
  return { url: api.url, sessions: api.sessions, db }
}

t.test('labels and notes of a session and its turns are printed with them', async (t) => {
  const { url, db, sessions } = await recordSession(t)
  const note = 'looks \u001b[2Jfine\nask Kim'
  await sessions.updateMarks('code', {
    labels: ['seen', 'odd'],
    note,
    turns: { 1: { labels: ['cheat'], note: 'here' } },
  })
  for (const source of [
    ['--url', url],
    ['--db', db],
  ]) {
    const { stdout } = await runLlmProxy(['sessions', 'show', 'code', ...source])
    t.match(stdout, /^code: active, .*\nlabels: seen, odd\nnote: looks ⟨ESC⟩\[2Jfine\nask Kim\n\n/)
    t.match(stdout, /\n── turn 1 · main · .* · cheat\n {2}note: here\n/)
    t.notMatch(stdout, /── turn 0 .*cheat/)
    const labeled = await runLlmProxy(['sessions', 'list', ...source, '--label', 'cheat'])
    t.match(labeled.stdout, /^code .* seen, odd +\d{4}-/m)
  }
  const part = await runLlmProxy(['sessions', 'list', '--db', db, '--label', 'che'])
  t.notMatch(part.stdout, /^code /m)
})

t.test('a session is printed turn by turn, the same from a proxy and a database', async (t) => {
  const { url, db } = await recordSession(t)
  const show = (...more: string[]) => runLlmProxy(['sessions', 'show', 'code', ...more])
  const { code, stdout, stderr } = await show('--url', url)
  t.match({ code, stderr }, { code: 0, stderr: '' })
  t.equal((await show('--db', db)).stdout, stdout)
  const [table, first, second] = stdout.split(/\n\n(?=── turn|TURN)/).slice(1)
  t.match(table, /^ +0 +main +completed +- +stop +20 +1 +yes +500 +begins a conversation$/m)
  t.equal(
    first,
    `── turn 0 · main · m · stop · 500 ms
  model m, temperature 0.5
  tools: Edit
  a new row: begins a conversation
user
  Mend the depth.
sampled
  reasoning:
    The sea is deep.
  I edit it.
  Edit
    file_path: sea.py
    old_string → new_string:
      -depth = 3
      +depth = 4000`,
  )
  t.match(second, /^ {2}… 1 earlier message and the completion of turn 0 not repeated\ntool\n {2}ok\n/m)
  t.match(second, /\n {2}ok\n {2}… 180 more characters \(--full shows them\)\n/)
  t.match(second, '  ⟨ESC⟩[2J⟨ESC⟩[1;1Hsampled\n  ── turn 9⟨BEL⟩⟨CR⟩⟨U+009B⟩31m\n')
})

t.test('a summary is only its table, and the full output omits nothing', async (t) => {
  const { db } = await recordSession(t)
  const show = async (...more: string[]) =>
    (await runLlmProxy(['sessions', 'show', 'code', '--db', db, ...more])).stdout
  t.notMatch(await show('--summary'), /── turn|Mend/)
  const full = await show('--full')
  t.equal(full.match(/^ {2}ok$/gm)?.length, 100)
  t.match(full, '  tool Edit: Edits a file.\n')
  t.match(JSON.parse(await show('--json')), {
    session_id: 'code',
    turns: [{ completion_token_ids: [3] }, {}],
  })
})
