/** The parser states of completions on the thread, with a fake thread that may lose them. */
import t, { type Test } from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { ResponseReader } from '../../../../../src/proxy/tokens/responses/response-reader.ts'
import type { ResponseJob, ResponseReply } from '../../../../../src/proxy/tokens/responses/response-thread.ts'
import { PythonThread } from '../../../../../src/proxy/tokens/templates/python/python-thread.ts'

/** A text that the template cannot parse. */
const FAILING = 'fail'

/**
 * Replaces the thread by one that returns each text as content.
 * @param isReplacedAt whether the thread is replaced before the job with this number, from 1
 */
function fakeThread(t: Test, isReplacedAt: (job: number) => boolean = () => false) {
  const states = new Map<number, string>()
  let count = 0
  const execute = async (job: ResponseJob): Promise<ResponseReply> => {
    count += 1
    if (isReplacedAt(count)) states.clear()
    await new Promise(setImmediate)
    if (job.kind === 'close') {
      states.delete(job.id)
      return { deltas: [], undecided: 0 }
    }
    const before = job.opening ? '' : states.get(job.id)
    if (before === undefined) return 'unknown'
    states.set(job.id, before + job.texts.join(''))
    if (job.texts.includes(FAILING)) throw new ProxyError('internal', 'the template failed')
    return { deltas: job.texts.map((content) => ({ content })), undecided: 0 }
  }
  const { prototype } = PythonThread as unknown as { prototype: { execute: unknown } }
  const original = prototype.execute
  t.teardown(() => {
    prototype.execute = original
  })
  prototype.execute = execute
  return states
}

t.test('a completion is parsed again each time that the thread is replaced', async (t) => {
  const text = 'x'.repeat(100_000)
  // Jobs 1 and 2 parse the text, 3 the next one, 4 and 5 the text again.
  for (const replaced of [[3], [3, 5], [3, 6], [3, 5, 8]]) {
    const states = fakeThread(t, (job) => replaced.includes(job))
    const response = new ResponseReader({}).open('', [])
    await response.read([text], false)
    t.strictSame(await response.read(['y'], false), [{ content: 'y' }], replaced.join())
    t.strictSame([...states.values()], [`${text}y`])
  }
})

t.test('a completion is returned as raw text if the thread is replaced too often', async (t) => {
  fakeThread(t, (job) => job > 1)
  const response = new ResponseReader({}).open('', [])
  await response.read(['x'], false)
  t.strictSame(await response.read(['<call>', 'y'], true), [{ content: '<call>' }, { content: 'y' }, {}])
})

t.test('the state of a completion is discarded if its reader is closed during a read', async (t) => {
  const states = fakeThread(t, (job) => job === 6)
  const reader = new ResponseReader({})
  const closed = reader.open('', [])
  const first = closed.read(['x'], false)
  closed.close()
  await first
  await new Promise(setImmediate)
  t.equal(states.size, 0, 'the first read')
  const replayed = reader.open('', [])
  await replayed.read(['x'], false)
  await replayed.read(['y'], false)
  await replayed.read(['z'], false)
  const last = replayed.read(['z'], false)
  replayed.close()
  await last
  await new Promise(setImmediate)
  t.equal(states.size, 0, 'a read for which the text is parsed again')
})

t.test('the state of a completion that cannot be parsed is discarded', async (t) => {
  const states = fakeThread(t)
  const response = new ResponseReader({}).open('', [])
  t.strictSame(await response.read([FAILING], false), [{ content: FAILING }])
  await new Promise(setImmediate)
  t.equal(states.size, 0)
})
