import { runFiles } from '../helpers/run-files.ts'

await runFiles('test/unit/*.test.ts', 'test/unit/{base,embedded,inspector,protocol,worker}/**/*.test.ts')
