import { runFiles } from '../helpers/run-files.ts'

await runFiles('test/integration/{a[^g],b,c,d}*.test.ts', 'test/integration/embedded-*.test.ts')
