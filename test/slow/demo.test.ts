/** `npm run demo`, as its command runs it. */
import t from 'tap'
import { openSqliteReader } from '../../src/proxy/store/sqlite/open.ts'
import { killChild, waitForExit, waitForOutput } from '../helpers/children.ts'
import { runLlmProxy, startLlmProxy } from '../helpers/llm-proxy.ts'

t.test('the demo runs rollouts, shows what was trained, and leaves the records behind', async (t) => {
  const db = `${t.testdir({})}/demo.db`
  const { code, stdout, stderr } = await runLlmProxy(['demo', '--db', db])
  t.equal(code, 0, stderr)
  t.equal(stderr, '')
  const sessionIds = stdout.match(/^demo-[0-9a-f]{16}(?= )/gm) ?? []
  t.equal(new Set(sessionIds).size, 8)
  const rewards = new Set(stdout.match(/(?<=reward )-?\d\.\d\d/g))
  t.ok(rewards.size > 1, 'the rewards differ')
  t.match(
    stdout,
    /⟦<tool_call>\n\{"name": "calculator", "arguments": \{"expression": "19 \* 3"\}\}\n<\/tool_call><\|im_end\|>⟧/,
  )
  t.match(stdout, '⟦The answer is 57.<|im_end|>⟧')

  const reader = await openSqliteReader(db)
  t.teardown(() => reader.close())
  for (const sessionId of sessionIds) {
    const session = await reader.getSession(sessionId)
    t.equal(session?.status, 'completed')
    t.type(session?.reward?.reward, 'number')
    for await (const turn of reader.readTurns(sessionId))
      t.match(turn, { exact: true, engine: /^demo-worker\// })
  }
  const show = / {2}\S*llm-proxy (sessions show \S+) --db/.exec(stdout)?.[1]?.split(' ') ?? []
  t.match(await runLlmProxy([...show, '--db', db]), { code: 0, stdout: 'The answer is 57.' })

  // The last line: the demo prints where a browser shows a session.
  const [, inBrowser] = /http:\/\/127\.0\.0\.1:8091\/ui#\/session\/(\S+)\n$/.exec(stdout) ?? []
  t.ok(sessionIds.some((sessionId) => sessionId === inBrowser))
  const viewer = startLlmProxy(['view', '--db', db, '--port', '0'])
  t.teardown(() => killChild(viewer))
  const [viewed] = await waitForOutput(viewer.stdout, /http:\/\/\S+(?=\/ui)/)
  const response = await fetch(`${viewed}/sessions/${inBrowser}/tree`)
  t.equal(response.status, 200)
  t.ok(((await response.json()) as { turns: object[] }).turns.length > 0)
})

t.test('an interrupted demo ends at once and takes its agents with it', async (t) => {
  const child = startLlmProxy(['demo', '--db', `${t.testdir({})}/demo.db`, '--rollouts', '500'])
  t.teardown(() => killChild(child))
  await waitForOutput(child.stdout, /1\/500/)
  const interruptedAt = Date.now()
  child.kill('SIGINT')
  t.same(await waitForExit(child), [130, null])
  t.ok(Date.now() - interruptedAt < 5_000)
})
