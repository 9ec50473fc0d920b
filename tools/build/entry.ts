/** The entry point of the executable; the counterpart of `bin/llm-proxy`. */
import { run } from '../../src/cli/run.ts'

void run(process.argv.slice(2))
