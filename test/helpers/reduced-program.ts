/** The command line without the commands of products; its bundle lacks the products, too. */
import { runProgram } from '../../src/cli/run-program.ts'

void runProgram(process.argv.slice(2), () => {})
