import { runFiles } from '../../helpers/run-files.ts'

await runFiles('test/slow/{older-worker,relay-*}.test.ts')
