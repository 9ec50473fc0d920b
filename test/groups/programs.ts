import { runFiles } from '../helpers/run-files.ts'

await runFiles('test/unit/{bench,build,cli,deploy,gate,tools}/**/*.test.ts')
