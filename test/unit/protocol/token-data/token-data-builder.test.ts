import t from 'tap'
import { TokenDataBuilder } from '../../../../src/protocol/token-data/token-data-builder.ts'

t.test('the first version is that of the first token, which the spans may lack', async (t) => {
  const getFirstVersion = (start: number) => {
    const builder = new TokenDataBuilder()
    builder.add({ weight_versions: [{ version: 'v2', start, end: 4 }] }, 0, 4)
    return builder.firstVersion
  }
  t.equal(getFirstVersion(0), 'v2')
  t.equal(getFirstVersion(2), undefined)
  t.equal(new TokenDataBuilder().firstVersion, undefined)
})
