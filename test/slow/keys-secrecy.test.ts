/** Keys never appear in a log, an error, the database, an engine's request, or a worker's frame. */
import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import t, { type Test } from 'tap'
import { createAgentKey } from '../../src/proxy/http/access/agent-key.ts'
import { killChild, type PipedProcess, waitForExit, waitForOutput } from '../helpers/children.ts'
import { KEYS } from '../helpers/keys.ts'
import { startLlmProxy } from '../helpers/llm-proxy.ts'
import { RawWorker } from '../helpers/raw-worker.ts'
import { type ScriptedServer, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'
import { until } from '../helpers/until.ts'

const ENGINE_KEY = 'engine-key-for-tests'
const WRONG_KEY = 'a-wrong-key-for-tests'
const AGENT_KEY = createAgentKey(KEYS.agentKeySecrets[0]!, 's')
const OTHER_KEY = createAgentKey(KEYS.agentKeySecrets[0]!, 'other')

/** The forms of each key: plain and as in basic authentication. */
const SECRETS = [...Object.values(KEYS).flat(), ENGINE_KEY, WRONG_KEY, AGENT_KEY, OTHER_KEY].flatMap(
  (key) => [key, Buffer.from(`:${key}`).toString('base64')],
)

const ENV = {
  LLM_PROXY_ADMIN_KEY: KEYS.adminKeys.join(),
  LLM_PROXY_WORKER_KEY: KEYS.workerKeys.join(),
  LLM_PROXY_AGENT_KEY_SECRET: KEYS.agentKeySecrets.join(),
  LLM_PROXY_ENGINE_API_KEY: ENGINE_KEY,
  LLM_PROXY_LOG_LEVEL: 'trace',
}

function checkNoSecrets(t: Test, haystack: string, what: string, secrets = SECRETS): void {
  for (const secret of secrets) t.notOk(haystack.includes(secret), `${what} contains no ${secret}`)
}

interface LoggedProcess {
  child: PipedProcess
  /** The URL on which it listens, or to which it connects. */
  url: string
  /** Stops the process. @returns everything that it printed */
  stop(): Promise<string>
}

async function start(t: Test, args: string[], cwd: string): Promise<LoggedProcess> {
  const child = startLlmProxy(args, { cwd, env: ENV })
  const printed = Promise.all([text(child.stdout), text(child.stderr)])
  const [, url] = await waitForOutput(child.stdout, / (?:on|serves) (\S+)/)
  t.teardown(() => killChild(child))
  const stop = async () => {
    child.kill('SIGTERM')
    await waitForExit(child)
    return (await printed).join('')
  }
  return { child, url: url!, stop }
}

/** Starts an engine that echoes the request in its errors, as some servers do. */
async function startEngine(t: Test): Promise<ScriptedServer> {
  const engine = await startScriptedServer(({ method, path, headers, body }, response) => {
    if (method === 'GET') {
      const isList = path.endsWith('/models')
      return sendJson(
        response,
        isList ? { object: 'list', data: [{ id: 'm', owned_by: 'vllm' }] } : { version: '1' },
      )
    }
    if (body.model === 'fail')
      return sendJson(response, { error: { message: `bad key ${headers.authorization}` } }, 401)
    const message = { role: 'assistant', content: 'hi' }
    sendJson(response, { model: 'm', choices: [{ index: 0, message, finish_reason: 'stop' }], usage: {} })
  })
  t.teardown(() => engine.close())
  return engine
}

/** Sends valid and invalid requests with keys in every possible position. @returns all responses */
async function sendRequests(url: string): Promise<string> {
  const responses: string[] = []
  const send = async (path: string, headers: Record<string, string>, body?: object) => {
    const response = await fetch(url + path, {
      method: body ? 'POST' : 'GET',
      headers,
      ...(body && { body: JSON.stringify(body) }),
    })
    responses.push(`${response.status} ${JSON.stringify([...response.headers])} ${await response.text()}`)
  }
  const chat = (model: string) => ({ model, messages: [{ role: 'user', content: 'hi' }] })
  const bearer = (key: string) => ({ authorization: `Bearer ${key}` })
  await send('/s/v1/chat/completions', bearer(AGENT_KEY), chat('m'))
  await send('/v1/chat/completions', { ...bearer(WRONG_KEY), 'x-api-key': AGENT_KEY }, chat('m'))
  await send('/s/v1/messages', { 'x-api-key': AGENT_KEY }, { ...chat('m'), max_tokens: 5 })
  await send('/s/v1/chat/completions', { 'x-api-key': KEYS.adminKeys[0]! }, chat('m'))
  await send('/s/v1/chat/completions', bearer(AGENT_KEY), chat('fail'))
  await send('/s/v1/messages', bearer(AGENT_KEY), { ...chat('fail'), max_tokens: 5 })
  await send('/s/v1/chat/completions', bearer(AGENT_KEY), { ...chat('fail'), stream: true })
  await send('/s/v1/chat/completions', bearer(AGENT_KEY), { model: 5 })
  await send('/s/v1/chat/completions', bearer(OTHER_KEY), chat('m'))
  await send('/s/v1/chat/completions', bearer(WRONG_KEY), chat('m'))
  await send('/s/v1/chat/completions', bearer(KEYS.workerKeys[0]!), chat('m'))
  await send('/nowhere', bearer(AGENT_KEY))
  await send('/health', bearer(KEYS.adminKeys[0]!))
  await send('/sessions/s', bearer(KEYS.adminKeys[1]!))
  await send('/sessions', bearer(WRONG_KEY))
  await send('/openapi.json', bearer(KEYS.adminKeys[1]!))
  assert.deepEqual(
    responses.map((response) => Number(response.slice(0, 3))).slice(0, 4),
    [200, 200, 200, 200],
  )
  return responses.join('\n')
}

function databaseText(folder: string): string {
  const files = readdirSync(folder).filter((name) => name.includes('.db'))
  return files.map((name) => readFileSync(join(folder, name), 'latin1')).join('')
}

t.test('local mode: proxy, engine and agents', { timeout: 120_000 }, async (t) => {
  const folder = t.testdir({})
  const engine = await startEngine(t)
  const proxy = await start(
    t,
    ['serve', '--port', '0', '--engine-url', engine.url, '--engine-kind', 'openai'],
    folder,
  )
  checkNoSecrets(t, await sendRequests(proxy.url), 'a response')
  const printed = await proxy.stop()
  t.match(printed, 'unauthorized', 'the log reports unauthenticated clients')
  t.match(printed, 'engine', 'and of the engine')
  checkNoSecrets(t, printed, 'the log')
  checkNoSecrets(t, databaseText(folder), 'the database')
  const otherSecrets = SECRETS.filter((secret) => secret !== ENGINE_KEY)
  t.ok(engine.requests.some(({ headers }) => headers.authorization === `Bearer ${ENGINE_KEY}`))
  for (const { method, path, headers, body } of engine.requests) {
    checkNoSecrets(t, JSON.stringify([path, headers, body]), `${method} ${path} of the engine`, otherSecrets)
    checkNoSecrets(t, JSON.stringify([path, body]), `${method} ${path} of the engine`)
  }
})

t.test('relay mode: proxy, worker, engine and agents', { timeout: 120_000 }, async (t) => {
  const folder = t.testdir({})
  const engine = await startEngine(t)
  const proxy = await start(t, ['serve', '--port', '0', '--mode', 'relay'], folder)
  const proxyUrl = proxy.url.replace('//', `//:${KEYS.workerKeys[0]}@`)
  const args = ['worker', '--proxy-url', proxyUrl, '--engine-url', engine.url, '--engine-kind', 'openai']
  const rejected = await start(t, [...args.slice(0, 2), proxy.url, '--worker-key', WRONG_KEY], folder)
  const worker = await start(t, args, folder)
  await until(async () =>
    (await (await fetch(`${proxy.url}/health`)).text()).includes('"connected_workers":1'),
  )
  checkNoSecrets(t, await sendRequests(proxy.url), 'a response')
  const rejectedPrinted = await rejected.stop()
  t.match(rejectedPrinted, 'the proxy rejects the worker key')
  const printed = (await worker.stop()) + rejectedPrinted + (await proxy.stop())
  t.match(printed, 'proxy_connected')
  checkNoSecrets(t, printed, 'the logs')
  checkNoSecrets(t, databaseText(folder), 'the database')
  const otherSecrets = SECRETS.filter((secret) => secret !== ENGINE_KEY)
  checkNoSecrets(t, JSON.stringify(engine.requests), 'the engine', otherSecrets)
})

t.test('frames to a worker contain no keys', { timeout: 120_000 }, async (t) => {
  const proxy = await start(t, ['serve', '--port', '0', '--mode', 'relay'], t.testdir({}))
  const socketUrl = `${proxy.url.replace('http://', `ws://:${KEYS.workerKeys[1]}@`)}/ws/worker`
  const worker = await RawWorker.hello(socketUrl)
  const frames: object[] = [await worker.next('worker_hello_ack')]
  const responses = sendRequests(proxy.url)
  // Seven of the requests are accepted, and reach a worker.
  for (let count = 0; count < 7; count += 1) {
    const request = await worker.next('completion_request')
    frames.push(request)
    worker.chunk(request.request_id, 1, 'hi')
    worker.end(request.request_id, 2)
  }
  await responses
  checkNoSecrets(t, JSON.stringify(frames), 'a frame')
  worker.socket.terminate()
  await proxy.stop()
})
