import { runFiles } from '../../helpers/run-files.ts'

await runFiles('test/slow/{serve-postgres,store-postgres*}.test.ts')
