/** Real load balancers with the configurations of deploy/balancers: each call comes to the node of its session. */
import { once } from 'node:events'
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import { BALANCERS } from '../../deploy/balancers/make.ts'
import { makeAgentKey } from '../../src/proxy/http/access/agent-key.ts'
import { nodeOfSession } from '../../src/proxy/session/state/nodes.ts'
import { type BalancerKind, PACKAGES, programOf, startBalancer } from '../helpers/balancer.ts'

/** A server that says its name and the path that it was asked for. */
async function startNamed(t: Test, name: string): Promise<string> {
  const server = createServer((request, response) => {
    request.resume()
    request.on('end', () => response.end(JSON.stringify({ name, url: request.url })))
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  return `127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** The path as it is: `fetch` would tidy it. */
async function ask(url: string, path: string, headers: Record<string, string> = {}) {
  const { hostname, port } = new URL(url)
  const asked = request({ hostname, port, path, method: 'POST', headers })
  asked.end('{}')
  const [response] = await once(asked, 'response')
  const text = (await Array.fromAsync(response)).join('')
  return JSON.parse(text) as { name: string; url: string }
}

const IDS = [
  ...Array.from({ length: 24 }, (_, i) => `rollout-${i}~2`),
  'harbor/hello-world:0',
  'a/v1/b',
  'größe +1',
  'x.y_z',
]

for (const kind of Object.keys(BALANCERS) as BalancerKind[]) {
  const skip = programOf(kind) === undefined && `${kind} is not here (${PACKAGES[kind]})`
  t.test(`${kind} sends each call to the node of its session, as it came`, { skip }, async (t) => {
    const nodes: string[] = []
    for (let number = 1; number <= 4; number += 1) nodes.push(await startNamed(t, `node ${number}`))
    const url = await startBalancer(t, kind, { front: await startNamed(t, 'front'), nodes }, t.testdir({}))
    for (const id of IDS) {
      const own = `node ${nodeOfSession(id, 4)}`
      const encoded = encodeURIComponent(id)
      const raw = encodeURI(id)
      for (const path of [
        `/${encoded}/v1/chat/completions`,
        `/${raw}/v1/messages?beta=true`,
        `/${raw}/v1/messages/count_tokens`,
        `/sessions/${encoded}/v1/responses`,
        `/sessions/${raw}/v1/completions`,
        `/v1/chat/completions/${encoded}`,
      ])
        t.strictSame(await ask(url, path), { name: own, url: path }, `${id} by ${path}`)
      const key = makeAgentKey('secret'.repeat(8), id)
      // nginx cannot decode what is in a header.
      if (kind === 'nginx' && key.includes('%')) continue
      for (const header of [{ authorization: `Bearer ${key}` }, { 'x-api-key': key }] as Record<
        string,
        string
      >[])
        t.equal((await ask(url, '/v1/chat/completions', header)).name, own, `${id} by its key`)
    }
    t.equal(
      (await ask(url, '/v1/messages', { 'x-api-key': 'rollout-1' })).name,
      `node ${nodeOfSession('rollout-1', 4)}`,
    )
    for (const path of [
      '/v1/chat/completions',
      '/sessions',
      '/sessions/rollout-1/complete',
      '/admin/pause',
      '/groups',
    ])
      t.equal((await ask(url, path)).name, 'front', path)
  })
}
