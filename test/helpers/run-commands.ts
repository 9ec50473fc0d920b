/**
 * Runs commands of the command line in one worker thread, which has a separate stdout and stderr: cheaper than a process
 * for each.
 */
import { text } from 'node:stream/consumers'
import { isMainThread, Worker, workerData } from 'node:worker_threads'
import { VERSION } from '../../src/base/version.ts'
import { describeFailure } from '../../src/cli/fail.ts'
import { addProductCommands } from '../../src/cli/product-commands.ts'
import { buildProgram } from '../../src/cli/program.ts'
import type { CommandResult } from './command-host.ts'

/** Separates the output of two commands. No command may write it, so a test fails if one does. */
const END = '\u0000END\u0000'

/** Runs the commands one after the other. @returns their outputs in this order */
export async function runCommands(commands: readonly (readonly string[])[]): Promise<CommandResult[]> {
  const worker = new Worker(import.meta.filename, { workerData: commands, stdout: true, stderr: true })
  const codes: Promise<number[]> = new Promise((resolve, reject) => {
    worker.on('message', resolve).on('error', reject)
  })
  const [stdout, stderr, ended] = await Promise.all([text(worker.stdout), text(worker.stderr), codes])
  const errors = stderr.split(END)
  return stdout
    .split(END)
    .slice(0, -1)
    .map((out, index) => ({ stdout: out, stderr: errors[index]!, code: ended[index]! }))
}

async function runOne(command: readonly string[]): Promise<number> {
  let code = 0
  const program = buildProgram(VERSION, {}, addProductCommands, (exitCode) => (code = exitCode))
  try {
    await program.parseAsync(command, { from: 'user' })
  } catch (error) {
    const { line, exitCode } = describeFailure(error)
    process.stderr.write(`llm-proxy: ${line}\n`)
    code = exitCode
  }
  process.stdout.write(END)
  process.stderr.write(END)
  return code
}

if (!isMainThread) {
  const { parentPort } = await import('node:worker_threads')
  const codes: number[] = []
  for (const command of workerData as string[][]) codes.push(await runOne(command))
  parentPort!.postMessage(codes)
}
