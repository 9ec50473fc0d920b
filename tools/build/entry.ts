/** What the executable runs; the counterpart of `bin/llm-proxy`. */
import { run } from '../../src/cli/run.ts'

void run(process.argv.slice(2))
