import { runFiles } from '../helpers/run-files.ts'

await runFiles('test/integration/{f,h,i}*.test.ts')
