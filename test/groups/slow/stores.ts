import { runFiles } from '../../helpers/run-files.ts'

await runFiles(
  'test/slow/{health-of-stores,reads,serve-postgres,store-*}.test.ts',
  'test/slow/power/*.test.ts',
)
