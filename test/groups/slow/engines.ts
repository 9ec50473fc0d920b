import { runFiles } from '../../helpers/run-files.ts'

await runFiles('test/slow/{engine-routers,failing-engine,gateway-*,metrics,tracing}.test.ts')
