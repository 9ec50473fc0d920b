import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { isConnectionLoss } from '../../../../../src/proxy/store/postgres/connection.ts'

const withCode = (code: string) => Object.assign(new Error('failed'), { code })

t.test('an error that ends the connection is a loss of the connection', async (t) => {
  // https://www.postgresql.org/docs/current/errcodes-appendix.html
  for (const code of ['08006', '57P01', '57P02', '57P03', '57P04', '57P05', '25P03', '25P04', '25006'])
    t.equal(isConnectionLoss(withCode(code)), true, code)
  for (const code of ['ECONNRESET', 'EPIPE', 'READ_ONLY_SERVER'])
    t.equal(isConnectionLoss(withCode(code)), true, code)
  t.equal(isConnectionLoss(new Error('Client has encountered a connection error and is not queryable')), true)
})

t.test('an error of a statement is not a loss of the connection', async (t) => {
  for (const code of ['25P02', '55P03', '57014', '40001', '23505'])
    t.equal(isConnectionLoss(withCode(code)), false, code)
  t.equal(isConnectionLoss(new ProxyError('store_failed', 'failed')), false)
})
