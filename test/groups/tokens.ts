import { runFiles } from '../helpers/run-files.ts'

await runFiles(
  'test/unit/proxy/tokens/*.test.ts',
  'test/unit/proxy/tokens/{model,parsers,tokenizer}/**/*.test.ts',
)
