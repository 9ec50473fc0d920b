/** The inspector of a front, in a real browser: one page over two nodes. */
import { existsSync } from 'node:fs'
import { chromium } from 'playwright-core'
import t from 'tap'
import { uiRoutes } from '../../src/inspector/routes/routes.ts'
import { startFront } from '../../src/proxy/http/front/server.ts'
import { nodeOfSession } from '../../src/proxy/session/state/nodes.ts'
import { startProxy } from '../helpers/proxy.ts'
import { silentLogger } from '../helpers/silent-logger.ts'

const CHROMIUM = '/usr/bin/chromium'
const skip = !existsSync(CHROMIUM) && 'there is no chromium'

t.test('the inspector of a front shows sessions and engines of every node', { skip }, async (t) => {
  const nodes = await Promise.all(['1/2', '2/2'].map((node) => startProxy(t, { db: 'memory', node })))
  const nodeUrls = nodes.map(({ url }) => url)
  const options = {
    host: '127.0.0.1',
    port: 0,
    nodeUrls,
    timeoutMs: 60_000,
    logger: silentLogger,
    inspector: uiRoutes,
  }
  const front = await startFront(options)
  t.teardown(() => front.close(0))
  const call = async (path: string, body: object) => {
    const headers = { 'content-type': 'application/json' }
    const answer = await fetch(front.url + path, { method: 'POST', headers, body: JSON.stringify(body) })
    t.equal(answer.status, 200, path)
  }
  const ids = ['run-a', 'run-b', 'run-c', 'run-d']
  t.strictSame([...new Set(ids.map((id) => nodeOfSession(id, 2)))].sort(), [1, 2], 'they are on both nodes')
  for (const id of ids) {
    await call('/sessions', { session_id: id, metadata: { task: 'sea' } })
    const messages = [{ role: 'user', content: 'What is the sea?' }]
    await call(`/${id}/v1/chat/completions`, { model: 'embedded', messages, max_tokens: 4 })
  }
  const browser = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] })
  t.teardown(() => browser.close())
  const page = await browser.newPage({ viewport: { width: 1360, height: 820 } })
  page.setDefaultTimeout(60_000)
  const said: string[] = []
  page.on('pageerror', (error) => said.push(String(error)))
  await page.goto(`${front.url}/ui`)
  for (const id of ids) await page.getByText(id, { exact: true }).first().waitFor()
  t.pass('the list has them all')
  for (const id of ids) {
    await page.goto(`${front.url}/ui#/session/${encodeURIComponent(id)}`)
    await page.getByText('What is the sea?').first().waitFor()
  }
  t.pass('each session opens')
  await page.goto(`${front.url}/ui#/groups/task`)
  await page.getByText('sea', { exact: true }).first().waitFor()
  await page.goto(`${front.url}/ui#/engines`)
  for (const node of ['1/2', '2/2']) await page.getByText(`node ${node}`).first().waitFor()
  t.pass('groups and engines are of both nodes')
  await nodes[1]!.server.stop(0)
  await page.getByText('Node 2/2 does not answer').first().waitFor()
  t.same(said, [], 'no script has failed')
})
