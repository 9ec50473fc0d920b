/** The preview of a session's task in the session list. */
import t from 'tap'
import { readPreview } from '../../../../../../src/proxy/http/trainer/sessions/preview.ts'
import type { SessionRecord, TurnOutline } from '../../../../../../src/proxy/store/port/turn-store.ts'
import { addMessageTexts } from '../../../../../helpers/messages.ts'
import { recordTurn, startSessionsApi } from '../../../../../helpers/sessions-api.ts'

const user = (content: unknown) => JSON.stringify({ role: 'user', content })
const reminder = '<system-reminder>\nThe todo list is empty.\n</system-reminder>'

t.test("the task of a session is the user's text, without the reminders of its agent", async (t) => {
  const api = await startSessionsApi(t)
  const getTask = async (sessionId: string, ...messages: string[]) => {
    await api.sessions.create({ sessionId })
    await recordTurn(api.store, sessionId, 0, { requestMessages: messages })
    return (await api.call('GET', `/sessions/${sessionId}/preview`)).body.task
  }
  const parts = [reminder, 'Fix the bug.'].map((text) => ({ type: 'text', text }))
  t.equal(await getTask('beside', user(parts)), 'Fix the bug.')
  t.equal(await getTask('after', user('Fix the bug.'), user(reminder)), 'Fix the bug.')
  t.match(await getTask('alone', user(reminder)), /The todo list is empty/)
  t.equal(await getTask('between', user(`Fix ${reminder}the ${reminder}bug.`)), 'Fix the bug.')
  t.equal(await getTask('open', user('Fix <system-reminder>it')), 'Fix <system-reminder>it')
})

t.test('a task of a million incomplete reminders is read in linear time', async (t) => {
  const text = `Fix the bug. ${'<system-reminder>'.repeat(1_000_000)}`
  const outline = { status: 'open', promptPieces: [], tools: null, params: '{}', annotations: '{}' }
  const reader = {
    async *readOutlines() {
      yield { ...outline, lastMessage: addMessageTexts([user(text)]) } as unknown as TurnOutline
    },
  }
  const { task } = await readPreview(reader, { sessionId: 's', turnCount: 1 } as SessionRecord)
  t.equal(task?.slice(0, 30), text.slice(0, 30))
})
