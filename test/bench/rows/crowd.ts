/**
 * Hundreds of agents that start at once, as in a rollout: measures whether the proxy serves all, and responds to probes
 * meanwhile.
 */
import { get } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { freePort } from '../../helpers/free-port.ts'
import { Children } from '../parts/children.ts'
import type { ReplayJob, ReplayResult } from '../parts/replay-job.ts'
import { runReplay, startReplayer, startTargets } from '../parts/replay-targets.ts'
import { formatFigure, renderTable } from '../parts/table.ts'
import type { TargetName } from '../parts/targets.ts'
import type { Aim, Row } from './row.ts'

const AGENTS = { full: 500, quick: 8 }
/** The duration of the run. Requests that are in flight at its end are awaited. */
const DURATION_MS = { full: 20_000, quick: 100 }
const PROBE_EVERY_MS = 100
/** The limits of the aims. */
const MAX_RATIO = 3
const PROBE_LIMIT_MS = 1_000

interface Figures {
  target: TargetName
  result: ReplayResult
  probeMs: number
  /** The slowest probe on `--health-port`; NaN if there is none. */
  portProbeMs: number
}

export const crowd: Row = async (bench) => {
  const { quick } = bench
  const agents = quick ? AGENTS.quick : AGENTS.full
  await using children = new Children()
  const healthPort = await freePort()
  const proxyTarget = bench.targetNames.includes('local') ? 'local' : 'relay'
  const names = bench.targetNames.filter((name) => name === 'pipe' || name === proxyTarget)
  const args = ['--health-port', String(healthPort)]
  const targets = await startTargets({ ...bench, targetNames: names }, children, 'crowd', args)
  const figures: Figures[] = []
  for (const { name, baseUrl, path, pids } of targets) {
    // A new process for each, so that its heap contains nothing of another target's agents.
    const replayer = await startReplayer(children)
    const job: ReplayJob = {
      ...{ baseUrl, dialect: 'messages', shape: { kind: 'claude-code' }, concurrency: agents },
      ...{ durationMs: quick ? DURATION_MS.quick : DURATION_MS.full, warmUpMs: 'crowd', watchPids: pids },
      ...(path !== undefined && { path }),
    }
    const probe = new Probe(`${new URL(baseUrl).origin}/health`)
    const portProbe = name === 'pipe' ? undefined : new Probe(`http://127.0.0.1:${healthPort}/health`)
    const result = await runReplay(replayer, job)
    const portProbeMs = (await portProbe?.stop()) ?? Number.NaN
    figures.push({ target: name, result, probeMs: await probe.stop(), portProbeMs })
    await children.stop(replayer)
  }
  const title = `${agents} agents that start at once, Messages`
  return { row: 'crowd', report: `### ${title}\n\n${formatReport(figures)}`, aims: getAims(figures), figures }
}

/** Probes a URL repeatedly, over a new connection each time, as Kubernetes does. */
class Probe {
  readonly #running: Promise<void>
  #worstMs = 0
  #isOver = false

  constructor(url: string) {
    this.#running = this.#run(url)
  }

  async #run(url: string): Promise<void> {
    while (!this.#isOver) {
      const startedAt = performance.now()
      await waitForResponse(url)
      this.#worstMs = Math.max(this.#worstMs, performance.now() - startedAt)
      await sleep(PROBE_EVERY_MS)
    }
  }

  /**
   * Stops probing.
   * @returns the longest time until a response
   */
  async stop(): Promise<number> {
    this.#isOver = true
    await this.#running
    return this.#worstMs
  }
}

/** Resolves with any response: the pass-through has no `/health` and responds with an error. */
function waitForResponse(url: string): Promise<void> {
  return new Promise((resolve, reject) => {
    get(url, { agent: false }, (response) => response.resume().once('end', resolve)).once('error', reject)
  })
}

function formatReport(figures: readonly Figures[]): string {
  const head = ['target', 'requests', 'p50 ms of all', 'p50 of first', 'p99 of first', 'p99 of first to p50']
  const rows = figures.map(({ target, result, probeMs, portProbeMs }) => [
    target,
    String(result.turns),
    formatFigure(result.p50Ms),
    formatFigure(result.firstP50Ms),
    formatFigure(result.firstP99Ms),
    `${formatFigure(result.firstP99Ms / result.p50Ms)} ×`,
    formatFigure(probeMs),
    formatFigure(portProbeMs),
  ])
  return renderTable([...head, 'worst probe ms', 'on --health-port'], rows)
}

function getAims(figures: readonly Figures[]): Aim[] {
  return figures.flatMap(({ target, result, probeMs, portProbeMs }) => {
    if (target === 'pipe') return []
    const ratio = result.firstP99Ms / result.p50Ms
    const probe = (where: string, ms: number) => ({
      ...{ what: `${target}: the slowest probe ${where}`, wanted: `at most ${PROBE_LIMIT_MS} ms` },
      ...{ measured: `${formatFigure(ms)} ms`, met: ms <= PROBE_LIMIT_MS },
    })
    return [
      {
        ...{
          what: `${target}: p99 of first requests, of the p50 of all`,
          wanted: `at most ${MAX_RATIO} times`,
        },
        ...{ measured: `${formatFigure(ratio)} times`, met: ratio <= MAX_RATIO },
      },
      probe("on the agents' port", probeMs),
      probe('on --health-port', portProbeMs),
    ]
  })
}
