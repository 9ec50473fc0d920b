import { runFiles } from '../helpers/run-files.ts'

await runFiles('test/integration/{p,re[^l],ru,search,security,sg,sse,sw,t,v}*.test.ts')
