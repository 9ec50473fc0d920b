/** The transcript of a session as lines for a terminal. */
import t, { type Test } from 'tap'
import { formatTranscript } from '../../../../src/cli/sessions/transcript.ts'
import { recordTurn, startSessionsApi } from '../../../helpers/sessions-api.ts'

const tool = (content: string) => JSON.stringify({ role: 'tool', tool_call_id: 'a', content })

/** Returns the lines of the transcript of one turn. */
async function getLines(t: Test, turn: Parameters<typeof recordTurn>[3]): Promise<string[]> {
  const { call, sessions, store } = await startSessionsApi(t)
  await sessions.create({ sessionId: 's' })
  await recordTurn(store, 's', 0, turn)
  const tree = await call('GET', '/sessions/s/tree')
  const { body } = await call('GET', '/sessions/s?messages=new&ids=false')
  return [...formatTranscript(tree.body, body.turns, false)]
}

t.test('a completion without text is reported as such, with its finish reason', async (t) => {
  const lines = await getLines(t, { completionText: '', finishReason: 'length', reasoning: 'Hm.' })
  t.same(lines.slice(-4), [
    'sampled',
    '  reasoning:',
    '    Hm.',
    '  no text, only reasoning (finish reason: length)',
  ])
})

t.test('the output of a tool is printed without its colours', async (t) => {
  const lines = await getLines(t, {
    requestMessages: [tool('\u001b[32mok\u001b[0m 3 \u001b[31mfailed\u001b[0m')],
  })
  t.ok(lines.includes('  ok 3 failed'), lines.join('\n'))
})
