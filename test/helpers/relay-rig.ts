/** Proxies in relay mode and their workers, in this process and in others. */
import type { ChildProcess } from 'node:child_process'
import { join } from 'node:path'
import OpenAI from 'openai'
import type { Test } from 'tap'
import type { Logger } from '../../src/base/logger.ts'
import { type RunningWorker, startWorker } from '../../src/main.ts'
import { loadConfig } from '../../src/proxy/config/load.ts'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { WORKER, type WorkerConfig } from '../../src/proxy/config/options/worker.ts'
import type { Backend } from '../../src/proxy/engines/port/backend.ts'
import { InferenceWorkerClient } from '../../src/worker/inference-worker-client.ts'
import { killChild, startChild } from './children.ts'
import { CountingBackend, type CountingOptions } from './counting-backend.ts'
import { startProxy, type TestProxy } from './proxy.ts'
import { silentLogger } from './silent-logger.ts'
import { until } from './until.ts'

/** Starts a proxy in relay mode with a database on disk. */
export function startRelayProxy(t: Test, overrides: Partial<ServeConfig> = {}): Promise<TestProxy> {
  return startProxy(t, { mode: 'relay', ...overrides })
}

/** Starts a worker in this process that reconnects without delay; it stops when the test ends. */
export function startWorkerClient(
  t: Test,
  proxyUrl: string,
  workerId: string,
  backend: Backend = new CountingBackend(),
  random: () => number = () => 0,
): InferenceWorkerClient {
  const worker = new InferenceWorkerClient({
    proxyUrls: [proxyUrl],
    workerId,
    backend,
    maxConcurrency: 64,
    logger: silentLogger,
    random,
  })
  t.teardown(() => worker.stop(AbortSignal.abort()))
  worker.start()
  return worker
}

/** Starts a worker in this process as its command does, with these options; it stops when the test ends. */
export function joinWorker(
  t: Pick<Test, 'teardown'>,
  options: Partial<WorkerConfig>,
  logger: Logger = silentLogger,
): RunningWorker {
  const worker = startWorker({ ...loadConfig(WORKER, {}, {}), ...options }, { logger })
  t.teardown(() => worker.stop(0))
  return worker
}

/** Starts a worker in a separate process, which a test can kill. */
export function startWorkerProcess(
  t: Test,
  proxyUrl: string,
  workerId: string,
  counting: CountingOptions,
): ChildProcess {
  const program = join(import.meta.dirname, 'worker-process.ts')
  const child = startChild(process.execPath, [program, proxyUrl, workerId, JSON.stringify(counting)])
  child.stderr.pipe(process.stderr)
  t.teardown(() => killChild(child))
  return child
}

/** Creates an agent that never retries. */
export function createAgent(proxy: Pick<TestProxy, 'baseUrl'>, sessionId: string): OpenAI {
  return new OpenAI({ baseURL: proxy.baseUrl(sessionId), apiKey: 'none', maxRetries: 0 })
}

interface StreamResult {
  text: string
  /** The error that ended the stream early. */
  error: Error | undefined
}

/**
 * Streams one response.
 * @param onChunk receives the text so far for each chunk
 */
export async function streamResponse(
  agent: OpenAI,
  more: object = {},
  onChunk: (text: string) => void = () => {},
): Promise<StreamResult> {
  let text = ''
  try {
    const stream = await agent.chat.completions.create({
      model: 'counting',
      messages: [{ role: 'user', content: 'count' }],
      stream: true,
      ...more,
    })
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? ''
      onChunk(text)
    }
    return { text, error: undefined }
  } catch (error) {
    return { text, error: error as Error }
  }
}

/** Waits until the proxy has exactly these workers. */
export async function untilWorkers(proxy: Pick<TestProxy, 'get'>, ...workerIds: string[]): Promise<void> {
  const expected = [...workerIds].sort().join()
  await until(async () => {
    const workers = await proxy.get('/admin/workers')
    const ids = workers.map((worker: { worker_id: string }) => worker.worker_id)
    return ids.sort().join() === expected
  })
}

/** Returns the session's turns, once none is open. */
export async function getTurns(proxy: Pick<TestProxy, 'get'>, sessionId: string) {
  return until(async () => {
    const { turns } = await proxy.get(`/sessions/${sessionId}`)
    const closed = turns?.length > 0 && turns.every((turn: { status: string }) => turn.status !== 'open')
    return closed && turns
  })
}
