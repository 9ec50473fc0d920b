import { runFiles } from '../helpers/run-files.ts'

await runFiles('test/integration/session*.test.ts')
