/** A worker of an earlier version, unchanged: the nodes and workers of a cluster are not updated at once. */
import { join } from 'node:path'
import t from 'tap'
import { killChild, startChild } from '../helpers/children.ts'
import { extractRelease, getSkipReason } from '../helpers/earlier-release.ts'
import { Forwarder } from '../helpers/forwarder.ts'
import { startProxy } from '../helpers/proxy.ts'
import { until } from '../helpers/until.ts'

const COMMIT = '9fc4fe7'

t.test(
  'a worker of an earlier version serves, and reconnects',
  { skip: getSkipReason(COMMIT) },
  async (t) => {
    const folder = t.testdir({})
    const launcher = extractRelease(COMMIT, join(folder, 'old'))
    const proxy = await startProxy(t, { mode: 'relay', db: join(folder, 'proxy.db'), queueWaitMs: 30_000 })
    const forwarder = await Forwarder.to(t, Number(new URL(proxy.url).port))
    const args = ['worker', '--proxy-url', `http://127.0.0.1:${forwarder.port}`, '--worker-id', 'old']
    const worker = startChild(process.execPath, [launcher, ...args], {
      env: { PATH: process.env.PATH },
    })
    t.teardown(() => killChild(worker))
    worker.stdout.resume()
    worker.stderr.resume()
    const checkRequest = async (sessionId: string, stream: boolean) => {
      const response = await fetch(`${proxy.baseUrl(sessionId)}/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({
          model: 'm',
          messages: [{ role: 'user', content: 'Hi' }],
          max_tokens: 8,
          stream,
        }),
      })
      t.equal(response.status, 200, await response.text())
      const [row] = (await proxy.get(`/sessions/${sessionId}/trajectories`)).trajectories
      t.match(row, { exact: true, num_turns: 1 })
      t.equal(row.response_ids.length, row.response_logprobs.length)
      t.ok(row.prompt_ids.length > 0 && row.response_ids.length > 0)
    }
    await checkRequest('first', false)
    await checkRequest('streamed', true)
    const before = forwarder.accepted
    forwarder.cut()
    await until(() => forwarder.accepted > before)
    await checkRequest('again', true)
  },
)
