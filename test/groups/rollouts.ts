import { runFiles } from '../helpers/run-files.ts'

await runFiles('test/integration/rollout-*.test.ts', 'test/unit/rollout/**/*.test.ts')
