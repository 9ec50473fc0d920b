import { runFiles } from '../../helpers/run-files.ts'

await runFiles('test/slow/tokens/**/*.test.ts')
