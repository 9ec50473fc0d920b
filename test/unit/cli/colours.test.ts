import { WriteStream } from 'node:tty'
import t, { type Test } from 'tap'
import { applyColour } from '../../../src/cli/colours.ts'

/** Makes stdout a terminal with 256 colours, or a pipe, until the end of the test. */
function useStdout(t: Test, isTTY: boolean, env: Record<string, string> = {}): void {
  const { env: before } = process
  const own = Object.getOwnPropertyDescriptors(process.stdout)
  process.env = { TERM: 'xterm-256color', ...env }
  Object.defineProperties(process.stdout, {
    isTTY: { value: isTTY, configurable: true },
    getColorDepth: { value: WriteStream.prototype.getColorDepth, configurable: true },
  })
  t.teardown(() => {
    process.env = before
    for (const name of ['isTTY', 'getColorDepth'] as const) {
      const descriptor = own[name]
      if (descriptor) Object.defineProperty(process.stdout, name, descriptor)
      else Reflect.deleteProperty(process.stdout, name)
    }
  })
}

t.test('a terminal gets a colour by status', async (t) => {
  useStdout(t, true)
  t.equal(applyColour('failed'), '\u001b[31mfailed\u001b[39m')
  t.equal(applyColour('completed', 'completed  '), '\u001b[32mcompleted  \u001b[39m')
  t.equal(applyColour('active'), 'active')
})

t.test('NO_COLOR is respected', async (t) => {
  useStdout(t, true, { NO_COLOR: '1' })
  t.equal(applyColour('failed'), 'failed')
})

t.test('an output that is not a terminal gets no colours', async (t) => {
  useStdout(t, false)
  t.equal(applyColour('failed'), 'failed')
})
