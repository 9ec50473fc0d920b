import t from 'tap'
import Type from 'typebox'
import { OperatorClient } from '../../../src/cli/proxy-client.ts'
import { startScriptedServer } from '../../helpers/scripted-server.ts'

t.test('a streamed line may contain U+2028 and U+2029', async (t) => {
  const events = [{ note: 'a\u2028b\u2029ü' }, { note: 'c' }]
  const server = await startScriptedServer((_request, response) => {
    response.end(events.map((event) => `${JSON.stringify(event)}\n`).join(''))
  })
  t.teardown(() => server.close())
  const client = new OperatorClient({ url: server.url, adminKeys: [], tlsCa: undefined })
  const received = client.streamLines('/events', Type.Object({ note: Type.String() }))
  t.strictSame(await Array.fromAsync(received), events)
})
