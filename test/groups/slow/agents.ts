import { runFiles } from '../../helpers/run-files.ts'

await runFiles(
  'test/slow/agent-*.test.ts',
  'test/slow/{exactness,session-ids,token-data,unauthenticated-clients}.test.ts',
)
