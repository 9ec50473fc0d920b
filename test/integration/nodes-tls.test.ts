/** Nodes with TLS: which certificates of other nodes a node trusts, before and after renewals. */
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { getCACertificates, setDefaultCACertificates } from 'node:tls'
import Fastify from 'fastify'
import { generate } from 'selfsigned'
import t, { type Test } from 'tap'
import { Deliveries } from '../../src/proxy/http/nodes/deliveries.ts'
import { Forwarder } from '../../src/proxy/http/nodes/forwarder.ts'
import { NodeIdentity } from '../../src/proxy/http/nodes/node-identity.ts'
import { NodeTrust } from '../../src/proxy/http/nodes/node-trust.ts'
import type { CertificateFiles } from '../../src/proxy/http/transport/certificate.ts'
import { createFakeNodeCoordination } from '../helpers/fake-node-coordination.ts'
import { until } from '../helpers/until.ts'

interface Certified {
  cert: string
  private: string
}

const EC = { keyType: 'ec', algorithm: 'sha256' } as const

const createAuthority = (name: string) =>
  generate([{ name: 'commonName', value: name }], {
    ...EC,
    extensions: [
      { name: 'basicConstraints', cA: true },
      { name: 'keyUsage', keyCertSign: true },
    ],
  })

/** @param authority undefined: the certificate is self-signed */
const issue = (dnsName: string, authority?: Certified): Promise<Certified> =>
  generate([{ name: 'commonName', value: 'llm-proxy' }], {
    ...EC,
    ...(authority && { ca: { key: authority.private, cert: authority.cert } }),
    extensions: [{ name: 'subjectAltName', altNames: [{ type: 2, value: dnsName }] }],
  })

/** Starts another node. */
async function startOwner(t: Test, { cert, private: key }: Certified) {
  const server = createServer({ cert, key }, (_request, response) => {
    // The next request needs a new connection, whose certificate is verified.
    response.writeHead(200, { connection: 'close' }).end('served')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  return {
    url: `https://127.0.0.1:${(server.address() as AddressInfo).port}`,
    renew: (to: Certified) => server.setSecureContext({ cert: to.cert, key: to.private }),
  }
}

function writeFiles({ certPath, keyPath }: CertificateFiles, { cert, private: key }: Certified): void {
  writeFileSync(keyPath, key)
  writeFileSync(certPath, cert)
}

/**
 * Starts a node that forwards to the owner.
 * @param own the certificate of the node
 */
async function startNode(t: Test, own: Certified, ownerUrl: string) {
  const folder = t.testdir({})
  const files = { certPath: join(folder, 'cert.pem'), keyPath: join(folder, 'key.pem') }
  writeFiles(files, own)
  const shared = createFakeNodeCoordination({ lease: 1 })
  const [identity, deliveries] = [new NodeIdentity(shared), new Deliveries(shared)]
  const forwarder = new Forwarder({ shared, identity, deliveries, trust: new NodeTrust(files, 5) })
  const app = Fastify()
  app.get<{ Querystring: { url: string } }>('/', async (request, reply) => {
    try {
      const { body } = await forwarder.sendGet(request, request.query.url, AbortSignal.timeout(5_000))
      return await body.text()
    } catch (error) {
      return reply.send((error as { code: string }).code)
    }
  })
  t.teardown(() => app.close())
  t.teardown(() => forwarder.close())
  return {
    get: async (url = ownerUrl) => (await app.inject({ url: '/', query: { url } })).body,
    renew: (to: Certified) => writeFiles(files, to),
  }
}

t.test('nodes that share a certificate of an authority reach each other', async (t) => {
  const authority = await createAuthority('private authority')
  const shared = await issue('llm-proxy.example', authority)
  const owner = await startOwner(t, shared)
  t.equal(await (await startNode(t, shared, owner.url)).get(), 'served', 'without the authority in the file')
  const chain = { ...shared, cert: `${shared.cert}\n${authority.cert}` }
  t.equal(await (await startNode(t, chain, owner.url)).get(), 'served', 'with the authority in the file')
})

t.test('nodes with a private authority in --tls-cert may each have a certificate', async (t) => {
  const authority = await createAuthority('private authority')
  const owner = await startOwner(t, await issue('node-2.example', authority))
  const own = await issue('node-1.example', authority)
  const node = await startNode(t, { ...own, cert: `${own.cert}\n${authority.cert}` }, owner.url)
  t.equal(await node.get(), 'served')
})

t.test('a renewed self-signed certificate is trusted, and the previous one of other nodes', async (t) => {
  const [first, second] = await Promise.all([issue('llm-proxy.example'), issue('llm-proxy.example')])
  const [before, after] = [await startOwner(t, first), await startOwner(t, second)]
  const node = await startNode(t, first, before.url)
  t.equal(await node.get(), 'served')
  t.equal(await node.get(after.url), 'DEPTH_ZERO_SELF_SIGNED_CERT')
  node.renew(second)
  await until(async () => (await node.get(after.url)) === 'served')
  t.equal(await node.get(), 'served', 'a node that has not renewed its certificate yet')
})

t.test('a certificate of an authority that Node.js trusts needs the name of the service', async (t) => {
  const publicAuthority = await createAuthority('public authority')
  const defaults = getCACertificates('default')
  setDefaultCACertificates([...defaults, publicAuthority.cert])
  t.teardown(() => setDefaultCACertificates(defaults))
  const [own, renewed, foreign] = await Promise.all(
    ['llm-proxy.example', 'llm-proxy.example', 'attacker.example'].map((name) =>
      issue(name, publicAuthority),
    ),
  )
  const owner = await startOwner(t, own!)
  const node = await startNode(t, own!, owner.url)
  t.equal(await node.get(), 'served')
  owner.renew(renewed!)
  t.equal(await node.get(), 'served', 'the owner renewed its certificate first')
  owner.renew(foreign!)
  t.equal(await node.get(), 'ERR_TLS_CERT_ALTNAME_INVALID', 'which anybody can have for another name')
  owner.renew(await issue('llm-proxy.example'))
  t.equal(await node.get(), 'DEPTH_ZERO_SELF_SIGNED_CERT', 'a certificate of nobody is rejected')
})
