import { runFiles } from '../helpers/run-files.ts'

await runFiles('test/unit/proxy/tokens/{prompt,responses,templates}/**/*.test.ts')
