/**
 * The output file: one row per line, as a JSON object. A Parquet or Arrow file is generated from such a file when the
 * run has ended. All rows of a sample are written at once, so that a crash leaves at most the last sample incomplete,
 * which is removed when the file is opened again. Only one process at a time may open the file.
 */
import { existsSync } from 'node:fs'
import { type FileHandle, open, rename } from 'node:fs/promises'
import { Value } from 'typebox/value'
import { ProxyError } from '../../base/errors.ts'
import { parseJson } from '../../base/json.ts'
import { lockForWriting } from '../../proxy/store/sqlite/writer-lock.ts'
import type { AgentLoopOutputs } from '../../rollout/agent-loop-output.ts'
import { openArrow } from '../../rollout/datasets/arrow-file.ts'
import { readCompleteLines } from '../../rollout/datasets/complete-lines.ts'
import { isArrow, isColumns } from '../../rollout/datasets/row-columns.ts'
import { getInstanceId } from '../../rollout/trial-id.ts'
import { FileRow, type OutputRow } from './output-row.ts'
import { writeColumns } from './rows-columns.ts'
import type { SamplePlan } from './samples.ts'

export class OutputFile {
  readonly #path: string
  readonly #linesPath: string
  readonly #written: Map<string, FileRow>
  readonly #unlock: () => void
  #file: FileHandle
  #lastWrite: Promise<void> = Promise.resolve()

  private constructor(path: string, file: FileHandle, written: Map<string, FileRow>, unlock: () => void) {
    this.#path = path
    this.#linesPath = getLinesPath(path)
    this.#file = file
    this.#written = written
    this.#unlock = unlock
  }

  /**
   * Creates the file, or continues it.
   * @throws ProxyError `start_failed`, also if it has another format, or another process has opened it
   */
  static async open(path: string): Promise<OutputFile> {
    const linesPath = getLinesPath(path)
    if (linesPath !== path && existsSync(path) && !existsSync(linesPath)) {
      const message = `${path} exists without ${linesPath}, which is required to resume it: choose another --output`
      throw new ProxyError('start_failed', message)
    }
    // Imports apache-arrow now, so that a missing package is reported before the run and not at its end.
    if (isArrow(path)) await openArrow()
    await using undo = new AsyncDisposableStack()
    try {
      const file = await open(linesPath, 'a')
      undo.defer(() => file.close())
      const { unlock } = lockForWriting(linesPath)
      undo.defer(() => unlock())
      const { written, endBytes } = await readWritten(linesPath)
      await file.truncate(endBytes)
      undo.move()
      return new OutputFile(path, file, written, unlock)
    } catch (error) {
      throw createWriteError(linesPath, error)
    }
  }

  /** Returns the samples that the file lacks. @throws ProxyError `config_invalid` if it has rows of other tasks */
  selectMissing(samples: readonly SamplePlan[]): SamplePlan[] {
    return samples.filter((sample) => {
      const row = this.#written.get(getSampleKey(sample.taskIndex, sample.sampleIndex))
      if (row !== undefined && !isRowOfSample(row, sample)) throw this.#createOtherTasksError(sample, row)
      return row === undefined
    })
  }

  /** Returns the samples in the file whose attempts all failed. */
  selectFailed(samples: readonly SamplePlan[]): SamplePlan[] {
    return samples.filter(({ taskIndex, sampleIndex }) => {
      const row = this.#written.get(getSampleKey(taskIndex, sampleIndex))
      return row !== undefined && (row.metrics.failed ?? 0) > 0
    })
  }

  /** Removes the rows of these samples. @throws ProxyError `start_failed` */
  async removeSamples(samples: readonly SamplePlan[]): Promise<void> {
    const keys = new Set(samples.map(({ taskIndex, sampleIndex }) => getSampleKey(taskIndex, sampleIndex)))
    try {
      // The remaining rows may have taken days, so they are copied to a new file, which replaces the old one when it is
      // complete.
      const partialPath = `${this.#linesPath}.tmp`
      const rest = await open(partialPath, 'w')
      try {
        for await (const line of readCompleteLines(this.#linesPath)) {
          const { task_index, sample_index } = parseRow(line)!
          if (!keys.has(getSampleKey(task_index, sample_index))) await rest.appendFile(`${line}\n`)
        }
        await rest.datasync()
      } finally {
        await rest.close()
      }
      await rename(partialPath, this.#linesPath)
      await this.#file.close()
      this.#file = await open(this.#linesPath, 'a')
    } catch (error) {
      throw createWriteError(this.#linesPath, error)
    }
    for (const key of keys) this.#written.delete(key)
  }

  /** Appends the rows of a sample. @throws ProxyError `start_failed` */
  append(sample: SamplePlan, outputs: AgentLoopOutputs): Promise<void> {
    const { taskIndex, sampleIndex, digest } = sample
    const where = { task_index: taskIndex, sample_index: sampleIndex }
    const head = { ...where, instance_id: readInstanceId(sample), task_digest: digest }
    const text = outputs
      .map((output) => `${JSON.stringify({ ...head, ...output } satisfies OutputRow)}\n`)
      .join('')
    this.#lastWrite = this.#lastWrite.then(async () => {
      try {
        await this.#file.appendFile(text)
      } catch (error) {
        throw createWriteError(this.#linesPath, error)
      }
    })
    return this.#lastWrite
  }

  /** Generates the Parquet or Arrow file, if requested. @throws ProxyError `start_failed` */
  async finish(): Promise<void> {
    await this.#lastWrite
    if (this.#linesPath !== this.#path) await writeColumns(this.#path, this.#linesPath)
  }

  /** Syncs appended rows to disk and closes the file. */
  async close(): Promise<void> {
    await this.#lastWrite.catch(() => {})
    await this.#file.datasync().catch(() => {})
    await this.#file.close()
    this.#unlock()
  }

  #createOtherTasksError(sample: SamplePlan, { instance_id }: FileRow): ProxyError {
    const { taskIndex } = sample
    const other = instance_id !== readInstanceId(sample) && instance_id !== null ? instance_id : 'another one'
    const message = `${this.#path} has rows of other tasks: task ${taskIndex} is ${other} there; choose another --output`
    return new ProxyError('config_invalid', message)
  }
}

/** Returns the path of the file of lines. */
function getLinesPath(path: string): string {
  return isColumns(path) ? `${path}.jsonl` : path
}

function getSampleKey(taskIndex: number, sampleIndex: number): string {
  return `${taskIndex}.${sampleIndex}`
}

function readInstanceId({ task }: SamplePlan): string | null {
  return getInstanceId(task) ?? null
}

function isRowOfSample({ instance_id, task_digest }: FileRow, sample: SamplePlan): boolean {
  return instance_id === readInstanceId(sample) && (task_digest ?? sample.digest) === sample.digest
}

function createWriteError(path: string, error: unknown): ProxyError {
  if (error instanceof ProxyError) return error
  return new ProxyError('start_failed', `cannot write ${path}`, { cause: error })
}

/** Returns the complete samples of a file, and the offset at which the last of them ends. */
async function readWritten(path: string): Promise<{ written: Map<string, FileRow>; endBytes: number }> {
  const written = new Map<string, FileRow>()
  let [endBytes, readBytes, rowsOfSample] = [0, 0, 0]
  let sample: string | undefined
  for await (const line of readCompleteLines(path)) {
    readBytes += Buffer.byteLength(line) + 1
    const row = parseRow(line)
    const key = row && getSampleKey(row.task_index, row.sample_index)
    if (key === undefined || (rowsOfSample > 0 && key !== sample)) {
      throw new ProxyError('start_failed', `${path} is not a file of rollouts: choose another --output`)
    }
    sample = key
    rowsOfSample += 1
    if (rowsOfSample < row!.metrics.num_rows) continue
    written.set(key, row!)
    endBytes = readBytes
    rowsOfSample = 0
  }
  return { written, endBytes }
}

function parseRow(line: string): FileRow | undefined {
  const row = parseJson(line)
  return Value.Check(FileRow, row) ? row : undefined
}
