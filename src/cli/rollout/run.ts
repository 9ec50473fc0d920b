import { ProxyError } from '../../base/errors.ts'
import type { Logger } from '../../base/logger.ts'
import { createRunner } from '../../rollout/create-runner.ts'
import { mapConcurrently } from '../../rollout/map-concurrently.ts'
import type { RolloutConfig } from '../../rollout/options.ts'
import { RemoteAgentLoop } from '../../rollout/remote-agent-loop.ts'
import type { AgentRunner } from '../../rollout/runners/runner.ts'
import { getInstanceId } from '../../rollout/trial-id.ts'
import { InterruptHandler } from '../interrupt.ts'
import { printLine } from '../print-line.ts'
import { Progress } from '../progress.ts'
import { toPrintable } from '../table.ts'
import { OutputFile } from './output-file.ts'
import { planSamples, readSamples, type SamplePlan } from './samples.ts'
import { formatProgress, formatSummary, SampleStatistics } from './tally.ts'

/** The interval of progress lines without a terminal: a run may have thousands of samples. */
const LINE_INTERVAL_MS = 1_000
/** The interval at which the runner's progress is shown while no sample completes. */
const NOTE_INTERVAL_MS = 5_000
/** Exit codes after a signal are this plus the number of the signal. */
const EXIT_INTERRUPTED = 128
/** The maximum length of a message about failed attempts, in characters. */
const MAX_FAILURE_LENGTH = 200

/**
 * Runs `llm-proxy rollout`: runs the samples that the output lacks.
 * @returns the exit code: 0 if each sample has its result, 1 if every agent failed, in this run or in the one that
 *   wrote the output, 130 or 143 if it was interrupted
 * @throws ProxyError `proxy_failed` immediately if the proxy does not respond; and the error of a rollout
 */
export async function run(config: RolloutConfig): Promise<number> {
  if (config.listen !== undefined) return (await import('./listen.ts')).listen(config, config.listen)
  if (config.tasks === undefined)
    throw new ProxyError('config_invalid', 'there is nothing to run: give --tasks, or --listen')
  const samples = planSamples(await readSamples(config.tasks), config.samplesPerTask)
  let notify = printLine
  const logger = createLogger((text) => notify(text))
  const runner = createRunner(config, (text) => notify(text))
  const loop = new RemoteAgentLoop({ ...config, runner, logger })
  await using closing = new AsyncDisposableStack()
  closing.defer(() => loop.close())
  const output = await OutputFile.open(config.output)
  closing.defer(() => output.close())
  const existing = samples.length - output.selectMissing(samples).length
  if (existing > 0) printLine(`${config.output} has ${existing} of ${samples.length} samples already`)
  const failed = output.selectFailed(samples)
  if (failed.length > 0) printLine(describeFailed(failed, config.retryFailed))
  const again = config.retryFailed ? failed : []
  if (existing < samples.length || again.length > 0) await loop.reach()
  if (again.length > 0) await output.removeSamples(again)
  const missing = output.selectMissing(samples)
  // Starts with the exit code of the run that wrote the output: repeating a command must not turn its failure into a
  // success.
  let exitCode = failed.length === samples.length ? 1 : 0
  if (missing.length > 0) {
    const progress = new Progress(missing.length, process.stdout, { lineEveryMs: LINE_INTERVAL_MS })
    notify = (text) => progress.printMessage(text)
    exitCode = await runMissing({ config, loop, runner, output, missing, progress })
    notify = printLine
  }
  if (exitCode < EXIT_INTERRUPTED) await output.finish()
  return exitCode
}

interface RolloutRun {
  config: RolloutConfig
  loop: RemoteAgentLoop
  runner: AgentRunner
  output: OutputFile
  missing: readonly SamplePlan[]
  progress: Progress
}

/** Runs the missing samples. @returns the exit code */
async function runMissing(run: RolloutRun): Promise<number> {
  using interrupt = new InterruptHandler()
  const tally = new SampleStatistics()
  try {
    await runSamples(run, tally, interrupt.signal)
  } catch (error) {
    if (interrupt.exitCode === undefined) throw error
  } finally {
    run.progress.end()
    printLine(`\n${formatSummary(tally, run.missing.length)}`)
  }
  if (interrupt.exitCode === undefined) return tally.failed === run.missing.length ? 1 : 0
  printLine('\ninterrupted; run the same command to resume')
  return interrupt.exitCode
}

/**
 * Runs the samples. An error of one cancels the others, because they would fail, too.
 * @throws the error of a rollout or of the file
 */
async function runSamples(
  { config, loop, runner, output, missing, progress }: RolloutRun,
  tally: SampleStatistics,
  signal: AbortSignal,
): Promise<void> {
  const failure = new AbortController()
  const stop = AbortSignal.any([signal, failure.signal])
  await runner.prepare?.(stop)
  const note = () =>
    [formatProgress(tally), runner.describe?.()].filter((part) => part !== undefined).join(', ')
  const noteTimer = runner.describe && setInterval(() => progress.update(note()), NOTE_INTERVAL_MS)
  try {
    await mapConcurrently(missing, config.concurrency, async (sample) => {
      try {
        const outputs = await loop.run(config.samplingParams, sample.task, stop)
        await output.append(sample, outputs)
        tally.add(outputs)
        progress.advance(note())
      } catch (error) {
        failure.abort(error)
        throw error
      }
    })
  } finally {
    clearInterval(noteTimer)
  }
}

/** The maximum number of failed samples that are listed. */
const MAX_LISTED_FAILED = 10

function describeFailed(failed: readonly SamplePlan[], retryFailed: boolean): string {
  const names = failed
    .slice(0, MAX_LISTED_FAILED)
    .map(
      ({ task, taskIndex, sampleIndex }) => `${getInstanceId(task) ?? `task ${taskIndex}`} #${sampleIndex}`,
    )
  const more = failed.length > MAX_LISTED_FAILED ? ', …' : ''
  const fate = retryFailed ? 'are run again' : 'are not run again without --retry-failed'
  return toPrintable(
    `${failed.length} of them failed and ${fate}: ${names.join(', ')}${more}`,
    MAX_FAILURE_LENGTH,
  )
}

/** Returns a logger that reports failed attempts and other warnings. */
function createLogger(notify: (text: string) => void): Logger {
  const log = (fields: object, message: string) => {
    const { session_id: sessionId, agent_status: status, reason, note } = fields as Record<string, unknown>
    const failure = `${sessionId}: agent failed (${status}): ${reason ?? ''}`
    notify(toPrintable(sessionId === undefined ? `${message}: ${note ?? ''}` : failure, MAX_FAILURE_LENGTH))
  }
  return { debug() {}, info() {}, warn: log, error: log }
}
