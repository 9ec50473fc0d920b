import { runFiles } from '../../helpers/run-files.ts'

await runFiles('test/slow/{cli-*,demo}.test.ts')
