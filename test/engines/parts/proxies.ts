/** Proxies in front of one engine in each way there is, as their users start them. */
import { join } from 'node:path'
import type { Test } from 'tap'
import { ended, said } from '../../helpers/children.ts'
import { startLlmProxy } from '../../helpers/llm-proxy.ts'
import { until } from '../../helpers/until.ts'
import { getJson } from './record.ts'

export interface Mode {
  name: string
  /** Where the proxy listens. */
  url: string
}

/** In this order: chat, token, relay, relay with token mode. All stop when the test ends. */
export async function startModes(
  t: Test,
  engine: { url: string; model: string; contextLength: number },
  folder: string,
): Promise<Mode[]> {
  const token = ['--tokenizer', engine.model, '--context-length', String(engine.contextLength)]
  // vLLM's answers tell no weights: those that are replaced in a call are seen by a check before it ends.
  const often = ['--health-interval', '500ms']
  const start = async (name: string, ...args: string[]): Promise<Mode> => {
    const url = await startProxy(t, ['--db', join(folder, `${name}.db`), ...args])
    if (args.includes('relay')) {
      await startCommand(t, ['worker', '--proxy-url', url, '--engine-url', engine.url])
      await until(async () => (await getJson(`${url}/health`)).workers?.length === 1)
    }
    return { name, url }
  }
  return Promise.all([
    start('chat', '--engine-url', engine.url, ...often),
    start('token', '--engine-url', engine.url, ...often, ...token),
    start('relay', '--mode', 'relay'),
    start('relay-token', '--mode', 'relay', ...token),
  ])
}

/** @returns its URL */
export async function startProxy(t: Test, args: readonly string[]): Promise<string> {
  const [url] = await startCommand(t, ['serve', '--port', '0', ...args], /http:\/\/[\d.]+:\d+/)
  return url!
}

async function startCommand(t: Test, args: readonly string[], ready = /\n/): Promise<RegExpExecArray> {
  const child = startLlmProxy([...args, '--log-level', 'error'])
  child.stderr.setEncoding('utf8').on('data', (text: string) => t.comment(text.trimEnd()))
  t.teardown(() => {
    child.kill('SIGKILL')
    return ended(child)
  })
  return said(child.stdout, ready)
}
