/** Real load balancers with the configurations of deploy/balancers: all requests of a session reach one node. */
import { once } from 'node:events'
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import { BALANCERS } from '../../deploy/balancers/make.ts'
import { createAgentKey } from '../../src/proxy/http/access/agent-key.ts'
import { type BalancerKind, findProgram, PACKAGES, startBalancer } from '../helpers/balancer.ts'

interface NamedNode {
  name: string
  address: string
  stop(): void
}

/** Starts a server that responds with its name and the request's path. */
async function startNamed(t: Test, name: string): Promise<NamedNode> {
  const server = createServer((request, response) => {
    request.resume()
    request.on('end', () => response.end(JSON.stringify({ name, url: request.url })))
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const stop = () => {
    server.closeAllConnections()
    server.close()
  }
  t.teardown(stop)
  return { name, address: `127.0.0.1:${(server.address() as AddressInfo).port}`, stop }
}

/** Sends the path verbatim; `fetch` would normalize it. */
async function sendRequest(url: string, path: string, headers: Record<string, string> = {}) {
  const { hostname, port } = new URL(url)
  const sent = request({ hostname, port, path, method: 'POST', headers })
  sent.end('{}')
  const [response] = await once(sent, 'response')
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
  const skip = findProgram(kind) === undefined && `${kind} is not installed (${PACKAGES[kind]})`
  t.test(
    `${kind} sends the requests of a session unchanged to one node, and others to all`,
    { skip },
    async (t) => {
      const nodes = await Promise.all([1, 2, 3, 4].map((number) => startNamed(t, `node ${number}`)))
      const addresses = nodes.map(({ address }) => address)
      const url = await startBalancer(t, kind, addresses, t.testdir({}))
      const used = new Set<string>()
      for (const id of IDS) {
        const encoded = encodeURIComponent(id)
        const raw = encodeURI(id)
        const { name: owner } = await sendRequest(url, `/${encoded}/v1/chat/completions`)
        used.add(owner)
        for (const path of [
          `/${raw}/v1/messages?beta=true`,
          `/${raw}/v1/messages/count_tokens`,
          `/sessions/${encoded}/v1/responses`,
          `/sessions/${raw}/v1/completions`,
          `/v1/chat/completions/${encoded}`,
        ])
          t.strictSame(await sendRequest(url, path), { name: owner, url: path }, `${id} by ${path}`)
        const key = createAgentKey('secret'.repeat(8), id)
        // nginx cannot decode a header's value.
        if (kind === 'nginx' && key.includes('%')) continue
        for (const headers of [{ authorization: `Bearer ${key}` }, { 'x-api-key': key }] as Record<
          string,
          string
        >[])
          t.equal((await sendRequest(url, '/v1/chat/completions', headers)).name, owner, `${id} by its key`)
      }
      t.ok(used.size > 1, 'sessions are spread')
      const { name: byPath } = await sendRequest(url, '/rollout-1/v1/messages')
      t.equal((await sendRequest(url, '/v1/messages', { 'x-api-key': 'rollout-1' })).name, byPath)
      const others = new Set<string>()
      for (let times = 0; times < 12; times += 1) {
        for (const path of ['/sessions', '/sessions/rollout-1/complete', '/admin/pause', '/groups'])
          others.add((await sendRequest(url, path)).name)
      }
      t.ok(others.size > 1, 'requests without a session go to several nodes')
      nodes.find(({ name }) => name === byPath)!.stop()
      const { name: next } = await sendRequest(url, '/rollout-1/v1/messages')
      t.not(next, byPath, 'if a connection fails, the request goes to another node')
    },
  )
}
