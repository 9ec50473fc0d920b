/** A HEAD request of a route whose GET streams endlessly. */
import t from 'tap'
import { RawConnection } from '../helpers/raw-connection.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'

t.test('a HEAD request of a stream ends, and its connection serves the next request', async (t) => {
  const { url, call } = await startSessionsApi(t)
  await call('POST', '/sessions', { session_id: 's' })
  for (const path of ['/events', '/sessions/s/live']) {
    const connection = await RawConnection.open(url)
    connection.send(`HEAD ${path} HTTP/1.1\r\nhost: x\r\n\r\n`)
    await connection.until('\r\n\r\n')
    connection.send('GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n')
    t.match(await connection.closed, /^HTTP\/1\.1 200[\s\S]*HTTP\/1\.1 [\s\S]*"status"/, path)
  }
})
