import { runFiles } from '../helpers/run-files.ts'

await runFiles('test/unit/proxy/{config,dialects,engines,http,metrics,relay,tracing,verify}/**/*.test.ts')
