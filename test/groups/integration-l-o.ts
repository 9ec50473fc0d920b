import { runFiles } from '../helpers/run-files.ts'

await runFiles('test/integration/{l,m,n,o}*.test.ts')
