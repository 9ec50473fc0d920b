/** The entry point of the executable; the counterpart of `bin/llm-proxy`. */
import { CONFINED_COMMAND, runEmbeddedCode } from '../../src/base/assets.ts'
import { run } from '../../src/cli/run.ts'

const [command, key] = process.argv.slice(2)
if (command === CONFINED_COMMAND && process.send !== undefined) runEmbeddedCode(key!)
else void run(process.argv.slice(2))
