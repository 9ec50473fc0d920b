import { runFiles } from '../../helpers/run-files.ts'

await runFiles('test/slow/{remote-agent-loop,rollout-*,rollouts-many}.test.ts')
