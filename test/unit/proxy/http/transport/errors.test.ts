import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { buildErrorHeaders } from '../../../../../src/proxy/http/transport/errors.ts'

t.test("an engine's Retry-After is forwarded, up to five minutes", async (t) => {
  for (const [retryAfterS, sent] of [
    [0, '0'],
    [7, '7'],
    [300, '300'],
    [86_400, '300'],
  ] as const) {
    const limited = new ProxyError('engine_rejected', 'slow down', { status: 429, retryAfterS })
    t.strictSame(buildErrorHeaders(limited), { 'retry-after': sent })
    t.strictSame(buildErrorHeaders(new ProxyError('engine_failed', 'overloaded', { retryAfterS })), {
      'retry-after': sent,
    })
  }
})

t.test('an error without a Retry-After has that of its code, or none', async (t) => {
  t.strictSame(buildErrorHeaders(new ProxyError('store_failed', 'full')), { 'retry-after': '5' })
  t.strictSame(buildErrorHeaders(new ProxyError('engine_failed', 'broken')), {})
})

t.test('an error that no retry can resolve has no Retry-After', async (t) => {
  const ended = new ProxyError('session_ended', 'over', { retryAfterS: 1 })
  t.strictSame(buildErrorHeaders(ended), { 'x-should-retry': 'false' })
  const absent = new ProxyError('unsupported', 'no', { status: 501, retryAfterS: 1 })
  t.strictSame(buildErrorHeaders(absent), { 'x-should-retry': 'false' })
})
