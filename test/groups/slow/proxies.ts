import { runFiles } from '../../helpers/run-files.ts'

await runFiles(
  'test/slow/{bad-network,balancers,earlier-proxy,kill,litestream,many-sessions,schemathesis,two-releases}.test.ts',
)
