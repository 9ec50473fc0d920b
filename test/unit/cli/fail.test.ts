import { CommanderError } from 'commander'
import t from 'tap'
import { ProxyError } from '../../../src/base/errors.ts'
import { describeFailure, explainListenFailure } from '../../../src/cli/fail.ts'

const systemError = (code: string) =>
  Object.assign(new Error(`${code}: refused`), { code, syscall: 'listen' })

t.test('a wrong configuration is exit code 2, any other rejection 1', async (t) => {
  t.strictSame(describeFailure(new ProxyError('config_invalid', 'no')), { line: 'no', exitCode: 2 })
  t.strictSame(describeFailure(new ProxyError('start_failed', 'no')), { line: 'no', exitCode: 1 })
  t.strictSame(
    describeFailure(new CommanderError(1, 'commander.unknownOption', "error: unknown option '-x'")),
    {
      line: "unknown option '-x'",
      exitCode: 2,
    },
  )
})

t.test('help and version exit with 0 and print nothing more', async (t) => {
  const shown = new CommanderError(0, 'commander.helpDisplayed', '(outputHelp)')
  t.strictSame(describeFailure(shown), { line: undefined, exitCode: 0 })
})

t.test('the cause is printed unless the message contains it, and the error is one line', async (t) => {
  const cause = new Error('disk\n  full')
  t.equal(
    describeFailure(new ProxyError('start_failed', 'cannot write', { cause })).line,
    'cannot write: disk full',
  )
  t.equal(
    describeFailure(new ProxyError('start_failed', 'so: full', { cause: new Error('full') })).line,
    'so: full',
  )
})

t.test(
  'an error of the operating system is printed without a stack, an internal error with one',
  async (t) => {
    t.strictSame(describeFailure(systemError('EROFS')), { line: 'EROFS: refused', exitCode: 1 })
    t.match(
      describeFailure(new TypeError('x is not a function')).line,
      /TypeError: x is not a function\n +at /,
    )
    t.strictSame(describeFailure('thrown text'), { line: 'thrown text', exitCode: 1 })
  },
)

t.test('the error for an address that cannot be bound names the remedy', async (t) => {
  const line = (code: string) => describeFailure(explainListenFailure(systemError(code), '10.0.0.1', 80)).line
  t.match(
    line('EADDRINUSE'),
    'port 80 on 10.0.0.1 is in use: stop the program that listens there, or choose another port',
  )
  t.match(line('EACCES'), 'choose a port above 1023')
  t.match(line('EADDRNOTAVAIL'), 'this machine has no address 10.0.0.1')
  t.match(line('ENOTFOUND'), 'this machine has no address 10.0.0.1')
  const other = systemError('EMFILE')
  t.equal(explainListenFailure(other, '10.0.0.1', 80), other, 'any other error is unchanged')
})
