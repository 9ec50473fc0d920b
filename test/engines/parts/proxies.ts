/** Proxies in front of one engine in each mode, started as users start them. */
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Test } from 'tap'
import { waitForExit, waitForOutput } from '../../helpers/children.ts'
import { startLlmProxy } from '../../helpers/llm-proxy.ts'
import { until } from '../../helpers/until.ts'
import { getJson } from './check-session.ts'

export interface Mode {
  name: string
  /** Base URL of the proxy. */
  url: string
  /**
   * Counts the logs of the proxy or the worker that the engine was unhealthy or the worker was disconnected. Only then
   * the proxy discards the weight version.
   */
  countInterruptions(): number
}

interface Engine {
  url: string
  model: string
  contextLength: number
}

/** Starts the modes in this order: chat, token, relay, relay with token mode. All stop when the test ends. */
export function startModes(t: Test, engine: Engine, folder: string): Promise<Mode[]> {
  return startNamedModes(t, engine, folder, ['chat', 'token', 'relay', 'relay-token'])
}

/**
 * Starts proxies in token mode: local, then relay. They stop when the test ends.
 * @param flags of the proxies, such as `--continue-responses`
 */
export function startTokenModes(
  t: Test,
  engine: Engine,
  folder: string,
  flags: readonly string[] = [],
): Promise<Mode[]> {
  return startNamedModes(t, engine, folder, ['token', 'relay-token'], flags)
}

type ModeName = 'chat' | 'token' | 'relay' | 'relay-token'

async function startNamedModes(
  t: Test,
  engine: Engine,
  folder: string,
  names: readonly ModeName[],
  flags: readonly string[] = [],
): Promise<Mode[]> {
  const token = ['--tokenizer', engine.model, '--context-length', String(engine.contextLength)]
  // Responses of vLLM do not report the weight version, so a frequent health check must see a replacement before the
  // request ends.
  const often = ['--health-interval', '500ms']
  const modeArgs: Record<ModeName, string[]> = {
    chat: ['--engine-url', engine.url, ...often],
    token: ['--engine-url', engine.url, ...often, ...token],
    relay: ['--mode', 'relay'],
    'relay-token': ['--mode', 'relay', ...token],
  }
  const start = async (name: ModeName): Promise<Mode> => {
    const args = [...modeArgs[name], ...flags]
    let interruptions = 0
    const onLog = (line: string) => {
      if (/engine_down|worker_down|proxy_disconnected/.test(line)) interruptions += 1
    }
    const url = await startProxy(t, ['--db', join(folder, `${[name, ...flags].join('')}.db`), ...args], onLog)
    if (args.includes('relay')) {
      await startCommand(t, ['worker', '--proxy-url', url, '--engine-url', engine.url], { onLog })
      await until(async () => (await getJson(`${url}/health`)).workers?.length === 1)
    }
    return { name, url, countInterruptions: () => interruptions }
  }
  return Promise.all(names.map(start))
}

/**
 * @param onLog receives each warning and error that the proxy logs
 * @returns its URL
 */
export async function startProxy(
  t: Test,
  args: readonly string[],
  onLog: (line: string) => void = () => {},
): Promise<string> {
  const serve = ['serve', '--port', '0', ...args]
  const [url] = await startCommand(t, serve, { ready: /http:\/\/[\d.]+:\d+/, onLog })
  return url!
}

async function startCommand(
  t: Test,
  args: readonly string[],
  { ready = /\n/, onLog = () => {} }: { ready?: RegExp; onLog?: (line: string) => void } = {},
): Promise<RegExpExecArray> {
  const child = startLlmProxy([...args, '--log-level', 'warn'])
  createInterface({ input: child.stderr }).on('line', (line) => {
    t.comment(line)
    onLog(line)
  })
  t.teardown(() => {
    child.kill('SIGKILL')
    return waitForExit(child)
  })
  return waitForOutput(child.stdout, ready)
}

interface EngineState {
  healthy: boolean
  weight_version?: string | null
  unavailable?: string
}

/** Returns the state of the engine, or of the worker in front of it, as the proxy reports it. */
export async function getEngine({ url }: Mode): Promise<EngineState> {
  const { engines, workers } = await getJson(`${url}/health`)
  return (engines ?? workers)[0]
}

/** Waits until the proxy reports this weight version. */
export async function waitForWeights(mode: Mode, version: string): Promise<void> {
  await until(async () => (await getEngine(mode)).weight_version === version)
}
