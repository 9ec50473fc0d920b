import { runFiles } from '../../helpers/run-files.ts'

await runFiles(
  'test/slow/{added-fields,bench-peers,generated-clients,npm-package,python-sdks,readme}.test.ts',
)
