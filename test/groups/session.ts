import { runFiles } from '../helpers/run-files.ts'

await runFiles('test/unit/proxy/session/*/**/*.test.ts', 'test/unit/proxy/session/[^t]*.test.ts')
