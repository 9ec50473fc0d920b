import { loadEmbeddedModel } from '../../embedded/engine/embedded-model.ts'
import { startServer, startWorker } from '../../main.ts'
import { loadConfig } from '../../proxy/config/load.ts'
import type { DemoConfig } from '../../proxy/config/options/demo.ts'
import { SERVE } from '../../proxy/config/options/serve.ts'
import { VIEW } from '../../proxy/config/options/view.ts'
import { WORKER } from '../../proxy/config/options/worker.ts'
import { InterruptHandler } from '../interrupt.ts'
import { createLogger } from '../logger.ts'
import { getTypedCommand } from '../own-command.ts'
import { printLine } from '../print-line.ts'
import { Progress } from '../progress.ts'
import { COLOURED, formatRolloutTable, PLAIN, showTrajectory } from './report.ts'
import { type DemoRollout, runRollouts } from './rollouts.ts'

/**
 * Runs `llm-proxy demo`: the complete system on this machine, with a proxy in relay mode, a worker that connects to it,
 * agents, and a trainer that collects their trajectories.
 * @returns the exit code
 */
export async function run(config: DemoConfig): Promise<number> {
  using interrupt = new InterruptHandler()
  await using started = new AsyncDisposableStack()
  const logger = createLogger(config.logLevel)
  const { db, rollouts: count, concurrency } = config
  const server = await startServer({ ...loadConfig(SERVE, {}, {}), mode: 'relay', port: 0, db }, { logger })
  started.defer(async () => void (await server.stop(0)))
  const engine = { proxyUrls: [server.url], engineKind: 'embedded', workerId: 'demo-worker' } as const
  const worker = startWorker({ ...loadConfig(WORKER, {}, {}), ...engine }, { logger })
  started.defer(async () => void (await worker.stop(0)))
  printLine(`llm-proxy runs on ${server.url} in relay mode and records into ${db}.`)
  printLine(`A worker connects to it and serves its requests with the embedded engine.`)
  printLine(`${count} rollouts of a calculator agent, ${concurrency} at a time:\n`)
  try {
    const rollouts = await rollOut(config, server.url, interrupt.signal)
    report(rollouts, config)
    return rollouts.some(({ rows }) => rows[0].metrics.failed) ? 1 : 0
  } catch (error) {
    if (interrupt.exitCode === undefined) throw error
    printLine('\ninterrupted')
    return interrupt.exitCode
  }
}

async function rollOut(config: DemoConfig, proxyUrl: string, signal: AbortSignal): Promise<DemoRollout[]> {
  const { rollouts: count, concurrency } = config
  const progress = new Progress(count, process.stdout)
  const onDone = ({ task, rows }: DemoRollout) =>
    progress.advance(`reward ${rows[0].reward_score?.toFixed(2)}  ${task.question}`)
  try {
    return await runRollouts({ proxyUrl, count, concurrency, signal, onDone })
  } finally {
    progress.end()
  }
}

function report(rollouts: readonly DemoRollout[], { db }: DemoConfig): void {
  const isColoured = process.stdout.isTTY && !process.env.NO_COLOR
  const { tokenizer } = loadEmbeddedModel()
  const decode = (ids: readonly number[]) => tokenizer.decode([...ids], { skipSpecialTokens: false })
  const { rows } = rollouts.find((rollout) => rollout.rows[0].num_turns > 2) ?? rollouts[0]!
  const sessionId = rows[0].extra_fields.session_id
  printLine(`\n${formatRolloutTable(rollouts)}\n`)
  printLine(
    `The trajectory of ${sessionId}; tokens ${isColoured ? 'in green' : 'in ⟦brackets⟧'} were sampled and are trained on:\n`,
  )
  for (const row of rows) printLine(showTrajectory(row, decode, isColoured ? COLOURED : PLAIN))
  printLine(`\nRecorded in ${db}. To look further:`)
  printLine(`  ${getTypedCommand()} sessions list --db ${db}`)
  printLine(`  ${getTypedCommand()} sessions show ${sessionId} --db ${db}`)
  printLine(`  ${getTypedCommand()} sessions export ${sessionId} --db ${db}`)
  printLine(`  ${getTypedCommand()} view --db ${db}`)
  printLine(`and then in a browser: http://127.0.0.1:${VIEW.options.port.default}/ui#/session/${sessionId}`)
}
