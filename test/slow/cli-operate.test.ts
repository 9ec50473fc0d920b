/** The commands that control and watch a running proxy, as a user runs them. */
import { createInterface } from 'node:readline'
import t, { type Test } from 'tap'
import { runLlmProxy, startLlmProxy } from '../helpers/llm-proxy.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'

const ADMIN_KEY = 'an-admin-key-for-tests'

async function startRig(t: Test) {
  const proxy = await startProxy(t, { adminKeys: [ADMIN_KEY] })
  const address = ['--url', proxy.url, '--admin-key', ADMIN_KEY]
  return { proxy, address, run: (...args: string[]) => runLlmProxy([...args, ...address]) }
}

const getSessions = async (proxy: TestProxy) =>
  (await proxy.get('/sessions')).sessions.map(({ session_id }: { session_id: string }) => session_id)

t.test('chat sends one request, prints how it was recorded, and leaves nothing behind', async (t) => {
  const { proxy, run } = await startRig(t)
  const sent = await run('chat', 'What is 2 + 2?', '--max-tokens', '8')
  t.match(sent, { code: 0, stderr: '' })
  t.match(sent.stdout, /\n\n\d+ prompt tokens, \d+ sampled, (stop|length|tool_calls), \d+ ms, exact\n$/)
  t.same(await getSessions(proxy), [])
  const recorded = await run('chat', '--session', 'mine', '--json')
  t.equal(recorded.code, 0)
  t.match(JSON.parse(recorded.stdout), {
    index: 0,
    exact: true,
    request_messages: [{ content: 'Say hello.' }],
  })
  t.same(await getSessions(proxy), ['mine'])
})

t.test('sessions are aborted and deleted by their ids; an unknown one is reported', async (t) => {
  const { proxy, run } = await startRig(t)
  for (const id of ['a', 'b/c:0']) await proxy.post('/sessions', { session_id: id })
  t.match(await run('sessions', 'abort', 'a', 'b/c:0'), { code: 0, stdout: 'a: aborted\nb/c:0: aborted\n' })
  t.match(await run('sessions', 'abort', 'none'), { code: 1, stdout: 'none: not found\n' })
  const removed = await run('sessions', 'delete', 'b/c:0', 'none')
  t.match(removed, { code: 1, stdout: 'b/c:0: deleted\nnone: not found\n' })
  t.same(await getSessions(proxy), ['a'])
})

t.test('sessions are rewarded and completed from the command line', async (t) => {
  const { proxy, run } = await startRig(t)
  await proxy.post('/sessions', { session_id: 'b/c:0' })
  await run('chat', '--session', 'b/c:0', '--max-tokens', '1')
  const options = ['--components', '{"tests": 1}', '--turns', '{"0": 0.25}']
  const rewarded = await run('sessions', 'reward', 'b/c:0', '-0.5', ...options)
  t.match(rewarded, { code: 0, stdout: 'b/c:0: reward -0.5\n', stderr: '' })
  t.match(await run('sessions', 'complete', 'b/c:0', 'none'), {
    code: 1,
    stdout: 'b/c:0: completed\nnone: not found\n',
  })
  t.match(await proxy.get('/sessions/b/c:0'), {
    status: 'completed',
    reward: -0.5,
    reward_components: { tests: 1 },
    reward_turns: { 0: 0.25 },
  })
  t.match(await run('sessions', 'reward', 'none', '1'), { code: 1, stderr: /Session not found/ })
  t.match(await run('sessions', 'reward', 'b/c:0', 'high'), { code: 2, stderr: /invalid reward "high"/ })
})

t.test('requests are paused and resumed, weights declared, workers listed', async (t) => {
  const { proxy, run } = await startRig(t)
  t.match(await run('pause'), { code: 0, stdout: /^paused: no request runs/ })
  t.equal((await proxy.get('/health')).paused, true)
  t.match(await run('resume'), { code: 0, stdout: 'running\n' })
  t.equal((await proxy.get('/health')).paused, false)
  t.match(await run('weights', 'set', 'step-120'), { code: 0, stdout: 'weight version: step-120\n' })
  t.equal((await proxy.get('/admin/weight_version')).weight_version, 'step-120')
  const listed = await run('workers', 'list')
  t.match(listed.stdout, /^NAME +URL +KIND .*\nengine-\w+ +- +embedded +up +0\/\d+/)
  t.match(JSON.parse((await run('workers', 'list', '--json')).stdout), [
    { engine: 'embedded', healthy: true },
  ])
})

t.test('tail shows the sessions that changed last, and follows further events', async (t) => {
  const { proxy, address, run } = await startRig(t)
  for (const id of ['first', 'second', 'third']) await proxy.post('/sessions', { session_id: id })
  const tail = await run('sessions', 'tail', '--limit', '2')
  t.match(
    tail.stdout,
    /^\S+Z {2}second {2}active, 0 turns, reward -\n\S+Z {2}third {2}active, 0 turns, reward -\n$/,
  )
  const child = startLlmProxy(['sessions', 'tail', '-f', '--limit', '1', ...address])
  t.teardown(() => child.kill())
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  t.match((await lines.next()).value, / third /)
  // One event of each kind, because some may arrive before the stream of events is open.
  const next = lines.next()
  let isReported = false
  void next.then(() => {
    isReported = true
  })
  while (!isReported) await proxy.post('/sessions/third/reward', { reward: 0.5 })
  t.match((await next).value, /Z {2}third {2}reward 0\.5$/)
})

t.test('a proxy that does not respond, or requires a key, is reported in one line', async (t) => {
  const { proxy } = await startRig(t)
  const rejected = await runLlmProxy(['pause', '--url', proxy.url])
  t.match(rejected, { code: 1, stdout: '', stderr: /^llm-proxy: No key: .*: give --admin-key\n$/ })
  const unreachable = await runLlmProxy(['workers', 'list', '--url', 'http://127.0.0.1:1'])
  t.match(unreachable, {
    code: 1,
    stdout: '',
    stderr: /^llm-proxy: no proxy answers at http:\/\/127\.0\.0\.1:1/,
  })
})
