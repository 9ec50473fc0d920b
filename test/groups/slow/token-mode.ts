import { runFiles } from '../../helpers/run-files.ts'

await runFiles(
  'test/slow/{prompt-families,reasoning-efforts,response-template,token-mode*}.test.ts',
  'test/slow/session/*.test.ts',
)
