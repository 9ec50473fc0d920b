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

t.test('a message that names the proxy omits the credentials of its URL', async (t) => {
  const server = await startScriptedServer((_request, response) => void response.end('not JSON'))
  t.teardown(() => server.close())
  const withPassword = (url: string) => url.replace('//', '//user:hunter2@')
  const get = (url: string) =>
    new OperatorClient({ url, adminKeys: [], tlsCa: undefined }).get('/events', Type.Object({}))
  for (const url of [server.url, server.url.replace('http:', 'https:')])
    await t.rejects(
      get(withPassword(url)),
      { message: url },
      'which does not respond as expected, or not at all',
    )
})
