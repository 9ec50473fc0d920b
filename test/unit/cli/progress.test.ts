import { PassThrough } from 'node:stream'
import t from 'tap'
import { Progress } from '../../../src/cli/progress.ts'

/** A stream that stores the text written to it. */
function screen(isTTY: boolean) {
  const out = Object.assign(new PassThrough(), { isTTY }) as unknown as NodeJS.WriteStream
  return { out, text: () => String((out as unknown as PassThrough).read() ?? '') }
}

t.test('without a terminal, steps are printed as lines at intervals, and the last one always', async (t) => {
  const each = screen(false)
  const progress = new Progress(2, each.out)
  progress.advance('one')
  progress.advance('two')
  progress.end()
  t.equal(each.text(), '1/2 one\n2/2 two\n')
  const some = screen(false)
  const rare = new Progress(3, some.out, { lineEveryMs: 60_000 })
  for (const note of ['one', 'two', 'three']) rare.advance(note)
  rare.printMessage('by the way')
  rare.end()
  t.equal(some.text(), '1/3 one\nby the way\n3/3 three\n')
})

t.test('on a terminal, a bar is redrawn in place below other output', async (t) => {
  const { out, text } = screen(true)
  const progress = new Progress(2, out)
  progress.advance('one')
  progress.printMessage('by the way')
  progress.end()
  const frames = text().split('\r\u001b[2K')
  t.match(frames, [
    '',
    /^░{24} 0\/2 rollouts {2}$/,
    /^█{12}░{12} 1\/2 rollouts {2}one$/,
    /^by the way\n$/,
    /^█{12}░{12} 1\/2 rollouts {2}one\n$/,
  ])
})
