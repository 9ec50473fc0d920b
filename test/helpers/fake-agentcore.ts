/**
 * A fake of the part of AgentCore's data plane that rollouts use: InvokeAgentRuntime and StopRuntimeSession with the
 * paths and errors of the real service, in front of a container. Wire format: the model of `bedrock-agentcore` in the
 * AWS SDKs.
 */
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import type { Test } from 'tap'

export const SESSION_HEADER = 'x-amzn-bedrock-agentcore-runtime-session-id'

/** The response of a program in a container. */
export interface ContainerResponse {
  status?: number
  body: string
}

// biome-ignore lint/suspicious/noExplicitAny: tests look into payloads of any shape
export type Container = (sessionId: string, payload: any) => Promise<ContainerResponse> | ContainerResponse

/**
 * An error in place of the next response; `cut` closes the connection before the container receives the request, `cut
 * late` after.
 */
export type Fault = { name: string; status: number } | 'cut' | 'cut late'

export interface FakeAgentCore {
  url: string
  /** Sessions in order of their first request. */
  started: string[]
  stopped: string[]
  /** The largest number of concurrent sessions. */
  maxRunning: number
  throttled: number
  /** Faults of future requests, the next one first. */
  invokeFaults: Fault[]
  stopFaults: Fault[]
  /** Running sessions. Deleting one stops it, as AgentCore itself does. */
  running: Set<string>
}

export interface FakeAgentCoreOptions {
  /** Requests per second; also the size of the token bucket. */
  tps?: number
  /** Replaces `tps`: returns whether a request that arrives now is accepted. */
  accepts?: () => boolean
  sessions?: number
  /** Resolves when a session has started; until then a stop finds none. */
  start?: () => Promise<void>
}

let runtimes = 0
/** Returns a new runtime name. Each runner needs its own: runners of one runtime share a limiter. */
export function createArn(): string {
  runtimes += 1
  return `arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/agent_${runtimes}-x`
}

/** Starts the fake. Until the test ends, the environment directs every AWS client of this process to it. */
export async function startFakeAgentCore(
  t: Test,
  container: Container,
  limits: FakeAgentCoreOptions = {},
): Promise<FakeAgentCore> {
  const fake: FakeAgentCore = {
    url: '',
    started: [],
    stopped: [],
    maxRunning: 0,
    throttled: 0,
    invokeFaults: [],
    stopFaults: [],
    running: new Set(),
  }
  const take = limits.accepts ?? createBucket(limits.tps ?? Number.POSITIVE_INFINITY)
  const server = createServer(async (request, response) => {
    const payload = JSON.parse((await text(request)) || '{}')
    const isStop = /^\/runtimes\/[^/]+\/stopruntimesession\b/.test(request.url!)
    const fault = (isStop ? fake.stopFaults : fake.invokeFaults).shift()
    if (fault === 'cut') return request.socket.destroy()
    if (typeof fault === 'object') return reject(response, fault.status, fault.name)
    if (!take()) {
      fake.throttled += 1
      return reject(response, 429, 'ThrottlingException')
    }
    return isStop
      ? stop(fake, request, response)
      : invoke(
          fake,
          limits,
          fault === 'cut late' ? disconnectAfter(container, request) : container,
          payload,
          request,
          response,
        )
  })
  // Longer than any test: a client must not reuse a connection while the server closes it.
  server.keepAliveTimeout = 600_000
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { env } = process
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
    process.env = env
  })
  fake.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  process.env = {
    ...env,
    AWS_ENDPOINT_URL_BEDROCK_AGENTCORE: fake.url,
    AWS_ACCESS_KEY_ID: 'test',
    AWS_SECRET_ACCESS_KEY: 'test',
  }
  return fake
}

/** Wraps a container so that the connection breaks before its response is sent. */
function disconnectAfter(container: Container, { socket }: IncomingMessage): Container {
  return async (sessionId, payload) => {
    await container(sessionId, payload)
    socket.destroy()
    return { body: '' }
  }
}

function stop(fake: FakeAgentCore, request: IncomingMessage, response: ServerResponse): void {
  const sessionId = String(request.headers[SESSION_HEADER])
  fake.stopped.push(sessionId)
  if (fake.running.delete(sessionId)) respond(response, sessionId, { body: '{}' })
  else reject(response, 404, 'ResourceNotFoundException')
}

async function invoke(
  fake: FakeAgentCore,
  limits: FakeAgentCoreOptions,
  container: Container,
  payload: unknown,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const sessionId = String(request.headers[SESSION_HEADER])
  if (sessionId.length < 33 || sessionId.length > 256) return reject(response, 400, 'ValidationException')
  if (!fake.running.has(sessionId)) {
    if (fake.running.size >= (limits.sessions ?? Number.POSITIVE_INFINITY)) {
      return reject(response, 402, 'ServiceQuotaExceededException')
    }
    if (!fake.started.includes(sessionId)) fake.started.push(sessionId)
    await limits.start?.()
    fake.running.add(sessionId)
    fake.maxRunning = Math.max(fake.maxRunning, fake.running.size)
  }
  const { status = 200, body } = await container(sessionId, payload)
  if (status === 200) respond(response, sessionId, { body })
  else reject(response, 424, 'RuntimeClientError', body)
}

function respond(response: ServerResponse, sessionId: string, { body }: ContainerResponse): void {
  response.writeHead(200, { 'content-type': 'application/json', [SESSION_HEADER]: sessionId }).end(body)
}

function reject(response: ServerResponse, status: number, name: string, message = name): void {
  response.writeHead(status, { 'content-type': 'application/json', 'x-amzn-errortype': name })
  response.end(JSON.stringify({ message }))
}

/**
 * Creates a token bucket.
 * @returns a function that returns whether a request may pass
 */
function createBucket(perSecond: number): () => boolean {
  let [tokens, atMs] = [perSecond, performance.now()]
  return () => {
    const nowMs = performance.now()
    tokens = Math.min(perSecond, tokens + ((nowMs - atMs) / 1000) * perSecond)
    atMs = nowMs
    if (tokens < 1) return false
    tokens -= 1
    return true
  }
}
