/** Runs the program in this process, prints its error and sets the exit code. */
import { VERSION } from '../base/version.ts'
import { describeFailure } from './fail.ts'
import { exitOnSignals } from './process-lifecycle.ts'
import { buildProgram, type CommandRegistry } from './program.ts'

/**
 * Runs `llm-proxy` with these arguments and sets the exit code of the process.
 * @param addProductCommands adds the commands of the products that the program includes
 */
export async function runProgram(
  args: readonly string[],
  addProductCommands: (registry: CommandRegistry) => void,
): Promise<void> {
  process.stdout.on('error', exitWithoutOutput)
  // A message that cannot be printed is lost; the exit code remains that of the command.
  process.stderr.on('error', () => {})
  exitOnSignals()
  try {
    const program = buildProgram(VERSION, process.env, addProductCommands, (code) => {
      process.exitCode = code
    })
    await program.parseAsync(withDefaultCommand(args), { from: 'user' })
  } catch (error) {
    const { line, exitCode } = describeFailure(error)
    if (line !== undefined) process.stderr.write(`llm-proxy: ${line}\n`)
    process.exitCode = exitCode
  }
}

/** Adds the command `serve` to arguments that begin with an option, as in `llm-proxy --port 9000`. */
function withDefaultCommand(args: readonly string[]): readonly string[] {
  const isForProgram = ['-h', '--help', '-V', '--version']
  const [first = '--'] = args
  return first.startsWith('-') && !isForProgram.includes(first) ? ['serve', ...args] : args
}

/** Exits: quietly if the reader closes the pipe, as in `llm-proxy sessions list | head`, else with a message. */
function exitWithoutOutput(error: NodeJS.ErrnoException): void {
  if (error.code === 'EPIPE') process.exit()
  process.stderr.write(`llm-proxy: cannot write the output: ${error.message}\n`)
  process.exit(1)
}
