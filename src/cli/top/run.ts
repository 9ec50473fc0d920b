import { setTimeout as sleep } from 'node:timers/promises'
import type { TopConfig } from '../../proxy/config/options/operator.ts'
import { Interrupt } from '../interrupt.ts'
import { OperatorClient } from '../proxy-client.ts'
import { type Look, look } from './look.ts'
import { render } from './render.ts'
import { type Input, type Output, Screen } from './screen.ts'
import { Looks, type Snapshot } from './snapshot.ts'

/** A proxy that has said nothing for so long is shown as away. */
const ANSWER_MS = 10_000

interface Terminal {
  out: Output
  input: Input
}

/** `llm-proxy top`. @returns the exit code; whoever ends it has not failed */
export async function run(config: TopConfig): Promise<number> {
  using interrupt = new Interrupt()
  try {
    await watch(config, { out: process.stdout, input: process.stdin }, interrupt.signal)
  } catch (error) {
    if (!interrupt.signal.aborted) throw error
  }
  return 0
}

/**
 * On a terminal a picture that is drawn anew with each look; with `json` a line for each look; else one picture.
 * @param signal ends it
 * @throws ProxyError as {@link OperatorClient.call}: of the first look, and without a terminal of every one
 */
export async function watch(config: TopConfig, { out, input }: Terminal, signal: AbortSignal): Promise<void> {
  const { intervalMs, json } = config
  const { url } = new OperatorClient(config)
  const ask = (stop: AbortSignal) =>
    look(new OperatorClient(config, AbortSignal.any([stop, AbortSignal.timeout(ANSWER_MS)])))
  const looks = new Looks()
  const first = looks.add(await ask(signal))
  if (out.isTTY && !json) {
    await show({ url, first, looks, ask, intervalMs }, { out, input }, signal)
    return
  }
  // One look knows of no rate.
  do {
    await sleep(intervalMs, undefined, { signal })
    const snapshot = looks.add(await ask(signal))
    out.write(`${json ? JSON.stringify(snapshot) : render(snapshot, url).join('\n')}\n`)
  } while (json)
}

interface Watched {
  url: string
  first: Snapshot
  looks: Looks
  ask: (stop: AbortSignal) => Promise<Look>
  intervalMs: number
}

/** Goes on while the proxy is away, and says so: it may be starting anew. */
async function show(watched: Watched, { out, input }: Terminal, signal: AbortSignal): Promise<void> {
  const { url, first, looks, ask, intervalMs } = watched
  const left = new AbortController()
  const stop = AbortSignal.any([signal, left.signal])
  using screen = new Screen(out, input, () => left.abort())
  let snapshot = first
  const draw = (trouble?: string) =>
    screen.show((height) =>
      trouble === undefined
        ? render(snapshot, url, height)
        : [trouble, '', ...render(snapshot, url, height - 2)],
    )
  draw()
  while (!stop.aborted) {
    await sleep(intervalMs, undefined, { signal: stop }).catch(() => {})
    if (stop.aborted) return
    try {
      snapshot = looks.add(await ask(stop))
      draw()
    } catch (error) {
      if (!stop.aborted) draw(`${(error as Error).message}; what was seen last:`)
    }
  }
}
