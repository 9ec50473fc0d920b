/** Rollouts at two nodes of one database, each of which runs agents: an id is one rollout, whichever node receives it. */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { noPostgres, PostgresServer } from '../helpers/postgres.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { until } from '../helpers/until.ts'

if (noPostgres !== false) {
  t.pass('left out', { skip: noPostgres })
} else {
  const server = await PostgresServer.start()
  t.teardown(() => server.end())
  const db = await server.newDatabase()
  const folder = t.testdir({ runs: '' })
  const [runs, go] = [join(folder, 'runs'), join(folder, 'go')]
  const curl = `curl -s "$OPENAI_BASE_URL/chat/completions" -H "authorization: Bearer $OPENAI_API_KEY" -d "$REQUEST"`
  const config = {
    ...({ runner: 'command', verifier: 'true', sandbox: 'none', maxRetries: 0, db } as const),
    command: `echo "$PPID" >> ${runs}; ${curl}; until [ -e ${go} ]; do sleep 0.05; done`,
    environmentOverrides: {
      REQUEST: JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'hi' }], max_tokens: 4 }),
    },
  }
  const nodes = [await startProxy(t, config), await startProxy(t, config)] as const
  const started = () => readFileSync(runs, 'utf8').split('\n').length - 1
  const sendRequest = async ({ url }: TestProxy, method: string, path: string, body?: object) => {
    const json = body && { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }
    const response = await fetch(`${url}/rollouts${path}`, { method, ...json })
    return { status: response.status, body: JSON.parse(await response.text()) }
  }
  const post = (node: TestProxy, rollout_id: string, sample: object = { prompt: 'x' }) =>
    sendRequest(node, 'POST', '', { rollout_id, sample })
  // The address of a node reaches the others with its next heartbeat.
  await until(async () => {
    const healths = await Promise.all(nodes.map(({ get }) => get('/health')))
    return healths.every(({ nodes }) => nodes?.filter(({ url }: { url: unknown }) => url).length === 2)
  })

  t.test('an id that both nodes receive runs once, and both return its result', async (t) => {
    const both = nodes.map((node) => post(node, 'a/1'))
    await until(() => started() === 1)
    for (const node of nodes) {
      await until(async () => (await sendRequest(node, 'GET', '/a%2F1')).body.status === 'running')
      t.match((await sendRequest(node, 'GET', '')).body.rollouts, [{ rollout_id: 'a/1' }])
      t.equal((await post(node, 'a/1', { prompt: 'other' })).status, 409)
    }
    writeFileSync(go, '')
    const [one, two] = await Promise.all(both)
    t.match(one, { status: 200, body: { rollout_id: 'a/1', status: 'done' } })
    t.strictSame(two, one)
    for (const node of nodes) t.strictSame(await post(node, 'a/1'), one, 'its result is returned again')
    t.equal(started(), 1)
  })

  t.test('a rollout is removed at any node, and starts again', async (t) => {
    for (const node of nodes) {
      t.equal((await sendRequest(node, 'DELETE', '/a%2F1')).status, 200)
      for (const each of nodes) t.equal((await sendRequest(each, 'GET', '/a%2F1')).status, 404)
      const before = started()
      t.match(await post(node, 'a/1'), { status: 200, body: { status: 'done' } })
      t.equal(started(), before + 1)
    }
  })

  t.test('when its node has stopped, another one runs it', async (t) => {
    t.match(await post(nodes[0], 'b'), { body: { status: 'done' } })
    t.ok(existsSync(go))
    const before = started()
    await nodes[0].server.stop(0)
    await until(async () => (await post(nodes[1], 'b')).status === 200)
    t.equal(started(), before + 1)
  })
}
