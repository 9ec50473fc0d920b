import { runFiles } from '../../helpers/run-files.ts'

await runFiles('test/slow/{reads,store-health,store-open,store-sqlite}.test.ts', 'test/slow/power/*.test.ts')
