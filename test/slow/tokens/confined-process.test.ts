/** Code in a confined process cannot leave the process, even outside of Python. */
import { once } from 'node:events'
import t from 'tap'
import { startConfinedProcess } from '../../../src/proxy/tokens/templates/python/confined-process.ts'

const ATTEMPTS = new URL('../../helpers/confined-attempts.ts', import.meta.url)

interface Reply {
  attempts?: string[]
  name?: string
  result?: string
  error?: string
}

t.test('a confined process has no files, programs, threads, network or environment', async (t) => {
  process.env.CONFINED_TEST_SECRET = 'secret'
  t.teardown(() => delete process.env.CONFINED_TEST_SECRET)
  const host = startConfinedProcess(ATTEMPTS, { maxMemoryBytes: 2 ** 28 })
  t.teardown(() => host.terminate())
  const replies = host as unknown as NodeJS.EventEmitter
  const [{ attempts }] = (await once(replies, 'message')) as [Reply]
  for (const name of attempts!) {
    host.postMessage(name as unknown as object)
    const [reply] = (await once(replies, 'message')) as [Reply]
    t.equal(reply.name, name)
    if (name === 'list its environment') t.equal(reply.result, '{}')
    else t.match(reply, { error: /restricted|confined|disallowed|undefined/ }, name)
  }
})
