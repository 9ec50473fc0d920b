import { runFiles } from '../helpers/run-files.ts'

await runFiles('test/integration/relay-*.test.ts')
