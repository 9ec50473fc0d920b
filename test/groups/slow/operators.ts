import { runFiles } from '../../helpers/run-files.ts'

await runFiles('test/slow/{admin,keys,keys-secrecy,log-secrecy,tls,verify}.test.ts')
