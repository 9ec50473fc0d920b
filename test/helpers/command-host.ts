/**
 * A process that runs one command of `llm-proxy` after another for a test file, and reports each one's output to its
 * parent: a process for each command would load the same modules each time.
 */
import { run } from '../../src/cli/run.ts'

export interface CommandRequest {
  args: readonly string[]
  env: NodeJS.ProcessEnv
  cwd: string
}

export interface CommandResult {
  /** The exit code; null if a signal ended the process. */
  code: number | null
  stdout: string
  stderr: string
}

type Write = typeof process.stdout.write

/** Replaces a stream's output for one command. @returns a function that restores it and returns the text */
function capture(stream: NodeJS.WriteStream): () => string {
  const write = stream.write
  const chunks: Buffer[] = []
  stream.write = ((chunk: string | Uint8Array, ...rest: unknown[]) => {
    chunks.push(Buffer.from(chunk as string))
    const callback = rest.at(-1)
    if (typeof callback === 'function') process.nextTick(callback)
    return true
  }) as Write
  return () => {
    stream.write = write
    stream.removeAllListeners('error')
    return Buffer.concat(chunks).toString()
  }
}

async function runCommand({ args, env, cwd }: CommandRequest): Promise<CommandResult> {
  process.chdir(cwd)
  process.env = { ...env }
  process.exitCode = 0
  const [stdout, stderr] = [capture(process.stdout), capture(process.stderr)]
  try {
    await run(args)
    return { code: process.exitCode, stdout: stdout(), stderr: stderr() }
  } finally {
    stdout()
    stderr()
  }
}

process.on('message', (request: CommandRequest) => {
  void runCommand(request).then((result) => process.send!(result))
})
process.on('disconnect', () => process.exit())
