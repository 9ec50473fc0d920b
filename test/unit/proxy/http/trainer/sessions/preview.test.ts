/** The preview of a session's task in the session list. */
import t from 'tap'
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
})
