/** The files of the inspector's page, as they are served. */
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import t from 'tap'
import { CONTENT_SECURITY_POLICY } from '../../src/inspector/routes/routes.ts'
import { KEYS } from '../helpers/keys.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'

const MAX_GZIPPED_BYTES = 96 * 1024

t.before(() => {
  execFileSync(process.execPath, [join(import.meta.dirname, '../../tools/make-page.ts')])
})

t.test(
  'the complete page is 96 KiB or less when compressed, is public, and has a policy that allows nothing else',
  async (t) => {
    const { url } = await startSessionsApi(t, undefined, {}, { keys: KEYS, basePath: '/llm' })
    let total = 0
    for (const path of ['/ui', '/ui/app.js', '/ui/app.css', '/ui/icon.svg']) {
      const response = await fetch(url + path)
      t.equal(response.status, 200, path)
      t.equal(response.headers.get('content-security-policy'), CONTENT_SECURITY_POLICY)
      total += gzipSync(await response.text(), { level: 9 }).length
      const etag = response.headers.get('etag')!
      t.equal((await fetch(url + path, { headers: { 'if-none-match': etag } })).status, 304)
    }
    t.ok(total <= MAX_GZIPPED_BYTES, `${total} bytes`)
    const redirected = await fetch(`${url}/ui/`)
    t.equal(redirected.url, `${url}/ui`)
  },
)
