import { runFiles } from '../../helpers/run-files.ts'

await runFiles('test/slow/agent-*.test.ts', 'test/slow/{details,exactness,session-ids,strangers}.test.ts')
