import { runFiles } from '../../helpers/run-files.ts'

await runFiles(
  'test/slow/{health-of-stores,reads,store-open,store-sqlite}.test.ts',
  'test/slow/power/*.test.ts',
)
