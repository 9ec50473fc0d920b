import { runFiles } from '../../helpers/run-files.ts'

await runFiles('test/slow/{nodes-*,rollouts-nodes}.test.ts')
