/** The entry point of the command line: the program with the commands of all products. */
import { addProductCommands } from './product-commands.ts'
import { runProgram } from './run-program.ts'

/** Runs `llm-proxy` with these arguments and sets the exit code of the process. */
export function run(args: readonly string[]): Promise<void> {
  return runProgram(args, addProductCommands)
}
