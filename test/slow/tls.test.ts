/** HTTPS and wss, with a certificate that is renewed while the proxy runs. */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { connect } from 'node:tls'
import t, { type Test } from 'tap'
import { sendRequest } from '../../src/cli/health.ts'
import { readCertificate, watchCertificate } from '../../src/proxy/http/transport/certificate.ts'
import { UnauthenticatedConnections } from '../../src/proxy/http/transport/unauthenticated-connections.ts'
import { createWebServer } from '../../src/proxy/http/transport/web-server.ts'
import { RemoteAgentLoop } from '../../src/rollout/remote-agent-loop.ts'
import type { AgentRunner } from '../../src/rollout/runners/runner.ts'
import { InferenceWorkerClient } from '../../src/worker/inference-worker-client.ts'
import { type CertificateFolder, createCertificateFolder } from '../helpers/certificates.ts'
import { CountingBackend } from '../helpers/counting-backend.ts'
import { KEYS } from '../helpers/keys.ts'
import { createListingLogger } from '../helpers/listing-logger.ts'
import { runLlmProxy } from '../helpers/llm-proxy.ts'
import { startProxy } from '../helpers/proxy.ts'
import { RawConnection } from '../helpers/raw-connection.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'
import { silentLogger } from '../helpers/silent-logger.ts'
import { until } from '../helpers/until.ts'

/** Returns the serial number of the certificate that a new connection gets. */
async function getSerialNumber(url: string): Promise<string> {
  const { hostname: host, port } = new URL(url)
  const socket = connect({ host, port: Number(port), rejectUnauthorized: false })
  await once(socket, 'secureConnect')
  const { serialNumber } = socket.getPeerCertificate()
  socket.destroy()
  return serialNumber
}

function startSecureProxy(t: Test, { certPath: tlsCert, keyPath: tlsKey }: CertificateFolder, more = {}) {
  return startProxy(t, { tlsCert, tlsKey, db: 'memory', ...more })
}

t.test('the proxy serves HTTPS, to clients that trust its authority', async (t) => {
  const certificates = await createCertificateFolder(t)
  const { url } = await startSecureProxy(t, certificates)
  t.match(url, /^https:\/\/127\.0\.0\.1:\d+$/)
  const ca = readFileSync(certificates.caPath)
  t.match(await sendRequest(`${url}/health`, { ca }), { status: 200, text: '"status":"ok"' })
  await t.rejects(sendRequest(`${url}/health`), { code: 'UNABLE_TO_VERIFY_LEAF_SIGNATURE' })
})

t.test('a worker connects over wss, but not to a proxy with an untrusted certificate', async (t) => {
  const certificates = await createCertificateFolder(t)
  const { url } = await startSecureProxy(t, certificates, { mode: 'relay', ...KEYS })
  const startWorker = (ca?: string[]) => {
    const worker = new InferenceWorkerClient({
      proxyUrls: [url],
      workerId: 'w',
      apiKeys: KEYS.workerKeys,
      backend: new CountingBackend(),
      maxConcurrency: 1,
      logger: silentLogger,
      ...(ca && { ca }),
    })
    t.teardown(() => worker.stop(AbortSignal.abort()))
    worker.start()
    return worker
  }
  const [{ reason }] = await once(startWorker(), 'disconnected')
  t.match(reason, 'unable to verify the first certificate')
  await once(startWorker([readFileSync(certificates.caPath, 'utf8')]), 'connected')
})

t.test('sessions and health work with a proxy that has a private authority', async (t) => {
  const { certPath, keyPath, caPath } = await createCertificateFolder(t)
  const { url } = await startProxy(t, { tlsCert: certPath, tlsKey: keyPath, db: 'memory', basePath: '/llm' })
  t.match(await runLlmProxy(['sessions', 'list', '--url', url, '--tls-ca', caPath]), { code: 0 })
  t.match(await runLlmProxy(['sessions', 'list', '--url', url]), { code: 1, stderr: /unable to verify/ })
  t.match(await runLlmProxy(['health', '--url', url, '--tls-ca', caPath]), { code: 0 })
  t.match(await runLlmProxy(['health', '--url', url]), { code: 1, stderr: /unable to verify/ })
  const wrong = ['health', '--url', url, '--tls-ca', keyPath]
  t.match(await runLlmProxy([...wrong.slice(0, -1), '/nowhere']), {
    code: 2,
    stderr: /tls-ca: cannot use \/nowhere/,
  })
  const env = {
    LLM_PROXY_TLS_CERT: certPath,
    LLM_PROXY_TLS_KEY: keyPath,
    LLM_PROXY_PORT: new URL(url).port,
    LLM_PROXY_BASE_PATH: 'llm',
    // A container listens on all addresses and connects to itself at one that is in no certificate.
    LLM_PROXY_HOST: '0.0.0.0',
  }
  t.match(await runLlmProxy(['health'], { env }), { code: 0 })
})

t.test('a changed certificate is used for new connections, and existing ones continue', async (t) => {
  const certificates = await createCertificateFolder(t)
  const { url } = await startSessionsApi(
    t,
    undefined,
    {},
    {
      certificateFiles: certificates,
      certificateIntervalMs: 20,
    },
  )
  const before = await getSerialNumber(url)
  const running = await RawConnection.open(url)
  await certificates.renew()
  await until(async () => (await getSerialNumber(url)) !== before)
  await running.send('GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n').until('200 OK')
  running.socket.destroy()
})

t.test('a certificate without its new key is ignored until the key is there', async (t) => {
  const certificates = await createCertificateFolder(t)
  const { logger, lines } = createListingLogger()
  const used: string[] = []
  const stop = watchCertificate({
    files: certificates,
    current: readCertificate(certificates),
    onRenewed: ({ key }) => used.push(key),
    logger,
    intervalMs: 5,
  })
  t.teardown(stop)
  await certificates.renew('key')
  await until(() => lines.length)
  t.match(lines[0], { event: 'certificate_unusable', reason: /mismatch|do not|not match/i })
  t.same(used, [])
  await certificates.renew()
  await until(() => used.length)
  t.equal(used[0], readFileSync(certificates.keyPath, 'utf8'))
  t.equal(lines.filter(({ level }) => level === 'warn').length, 1, 'the same problem is logged once')
})

t.test('files that are not certificates are rejected at the start', async (t) => {
  const { certPath, keyPath } = await createCertificateFolder(t)
  const serve = (...args: string[]) => runLlmProxy(['serve', '--port', '0', '--db', 'memory', ...args])
  const missing = join(t.testdirName, 'missing.pem')
  t.match(await serve('--tls-cert', missing, '--tls-key', keyPath), {
    code: 2,
    stderr: /cannot use .*: ENOENT/,
  })
  t.match(await serve('--tls-cert', keyPath, '--tls-key', keyPath), {
    code: 2,
    stderr: /tls-cert and tls-key: cannot use/,
  })
  t.match(await serve('--tls-cert', certPath), {
    code: 2,
    stderr: /--tls-cert and --tls-key must be given together/,
  })
})

t.test('a plain request to the TLS port, and an endless handshake, do no harm', async (t) => {
  const { url } = await startSecureProxy(t, await createCertificateFolder(t))
  const plain = await RawConnection.open(url.replace('https', 'http'))
  plain.send('GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n')
  t.notMatch(await plain.closed, '200 OK')
  const garbage = await RawConnection.open(url.replace('https', 'http'))
  garbage.send(Buffer.from([0x16, 3, 1, 2, 0, 1, 0xff]))
  await (await RawConnection.open(url))
    .send('GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n')
    .until('200 OK')
  garbage.socket.destroy()
})

t.test('a rollout works over HTTPS, with keys and a private authority', async (t) => {
  const certificates = await createCertificateFolder(t)
  const { url } = await startSecureProxy(t, certificates, KEYS)
  const ca = readFileSync(certificates.caPath, 'utf8')
  const hosts: string[] = []
  const runner: AgentRunner = {
    run: async ({ openaiBaseUrl, apiKey }) => {
      const { status } = await sendRequest(`${openaiBaseUrl}/models`, {
        ca,
        headers: { 'x-api-key': apiKey },
      })
      hosts.push(`${openaiBaseUrl} ${status}`)
      return { status: 'completed', rewards: { done: 1 } }
    },
    close: async () => {},
  }
  const options = { proxyUrl: url, adminKeys: KEYS.adminKeys, tlsCa: certificates.caPath, runner }
  const loop = new RemoteAgentLoop(options, {})
  t.teardown(() => loop.close())
  await loop.run({}, { instance_id: 'one' })
  t.match(hosts, [/^https:\/\/127\.0\.0\.1:\d+\/one-\w+\/v1 200$/])
})

t.test('a connection with TLS belongs to its agent once it has sent a key', async (t) => {
  const unauthenticated = new UnauthenticatedConnections({ limit: 2, limitPerAddress: 2 })
  const certificate = readCertificate(await createCertificateFolder(t))
  const server = createWebServer(
    (request, response) => {
      unauthenticated.markAuthenticated(request.socket)
      response.end('hello')
    },
    { certificate, unauthenticated },
  )
  t.teardown(() => server.close())
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const url = `https://127.0.0.1:${(server.address() as AddressInfo).port}`
  const agent = await RawConnection.open(url)
  t.equal(unauthenticated.count, 1)
  await agent.send('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n').until('hello')
  t.equal(unauthenticated.count, 0)
  const silent = [await RawConnection.open(url), await RawConnection.open(url), await RawConnection.open(url)]
  await silent[0]!.closed
  t.equal(unauthenticated.count, 2)
  for (const { socket } of [agent, ...silent]) socket.destroy()
})
