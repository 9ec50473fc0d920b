import { runFiles } from '../helpers/run-files.ts'

await runFiles('test/integration/agent-*.test.ts')
