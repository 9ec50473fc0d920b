/** `llm-proxy top`, against a proxy that serves. */
import { EventEmitter, once } from 'node:events'
import { createInterface } from 'node:readline'
import t, { type Test } from 'tap'
import { watch } from '../../src/cli/top/run.ts'
import type { Input, Output } from '../../src/cli/top/screen.ts'
import { startFakeVllm } from '../helpers/fake-vllm.ts'
import { runLlmProxy, startLlmProxy } from '../helpers/llm-proxy.ts'
import { startProxy } from '../helpers/proxy.ts'
import { until } from '../helpers/until.ts'

const LEAVE = '\u001b[?7h\u001b[?25h\u001b[?1049l'

/** What a terminal is to a program. */
function terminal() {
  const written: string[] = []
  const raw: boolean[] = []
  const out = Object.assign(new EventEmitter(), {
    isTTY: true,
    rows: 24,
    write: (text: string) => written.push(text) > 0,
  })
  const input = Object.assign(new EventEmitter(), {
    isTTY: true,
    setRawMode: (mode: boolean) => raw.push(mode),
    resume: () => {},
    pause: () => {},
  })
  return {
    out,
    raw,
    written,
    /** @returns the first picture from now on that matches */
    sees: (pattern: RegExp) => {
      const from = written.length
      return until(() => written.slice(from).find((text) => pattern.test(text)))
    },
    type: (key: string) => input.emit('data', Buffer.from(key)),
    streams: { out: out as unknown as Output, input: input as unknown as Input },
  }
}

function configOf(url: string) {
  return { url, adminKeys: [], tlsCa: undefined, intervalMs: 20, json: false }
}

/** A proxy with a call that goes on until the test ends. */
async function busyProxy(t: Test) {
  const engine = await startFakeVllm()
  t.teardown(() => engine.close())
  const proxy = await startProxy(t, { engineUrls: [engine.url], engineKind: 'vllm' })
  const left = new AbortController()
  t.teardown(() => left.abort())
  // Its answer is left unread: the call is open, and soon nobody works on it.
  const answer = await fetch(`${proxy.baseUrl('endless')}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      model: 'fake',
      messages: [{ role: 'user', content: 'Go on.' }],
      stream: true,
      ignore_eos: true,
    }),
    signal: left.signal,
  })
  // Until then: the body of an answer that nobody holds is cancelled when it is collected.
  t.teardown(() => answer.body?.cancel().catch(() => {}))
  return proxy
}

t.test('a terminal shows what runs, what changes, and is as before once q or Ctrl+C is typed', async (t) => {
  const proxy = await busyProxy(t)
  for (const key of ['q', '\u0003']) {
    const { streams, raw, written, sees, type } = terminal()
    const watched = watch(configOf(proxy.url), streams, new AbortController().signal)
    await sees(/1 of \d+ at engines[\s\S]*endless +0 +\d+ \S.* [1-9][\d,]*.*$/m)
    await proxy.post('/admin/pause?drain_timeout_s=0')
    await sees(/paused for \d+ s: new calls wait/)
    await proxy.post('/admin/resume')
    await sees(/^(?![\s\S]*paused)/)
    t.strictSame(raw, [true])
    type('x')
    type(key)
    await watched
    t.equal(written.at(-1), LEAVE)
    t.strictSame(raw, [true, false])
  }
})

t.test('a terminal that becomes smaller gets a picture that fits', async (t) => {
  const proxy = await startProxy(t)
  const { streams, out, written, sees, type } = terminal()
  const watched = watch(
    { ...configOf(proxy.url), intervalMs: 3_600_000 },
    streams,
    new AbortController().signal,
  )
  await until(() => written.length === 2)
  out.rows = 3
  const seen = sees(/sampled/)
  out.emit('resize')
  t.equal((await seen).split('\r\n').length, 3)
  type('q')
  await watched
})

t.test('a proxy that goes away is told, beside what was seen last', async (t) => {
  const proxy = await startProxy(t)
  const { streams, written, sees } = terminal()
  const stop = new AbortController()
  const watched = watch(configOf(proxy.url), streams, stop.signal)
  await sees(/: ok/)
  await proxy.server.stop(0)
  await sees(/no proxy answers at http:\S+; what was seen last:[\s\S]*llm-proxy \d/)
  stop.abort()
  await watched
  t.equal(written.at(-1), LEAVE)
})

t.test('without a terminal there is one picture, or a JSON line for each look', async (t) => {
  const proxy = await busyProxy(t)
  const address = ['--url', proxy.url, '--interval', '100ms']
  const { code, stdout } = await runLlmProxy(['top', ...address])
  t.equal(code, 0)
  t.match(stdout, /^http:\S+, llm-proxy \d\S+, local, up .*: ok\ncalls {5}1 of /)
  t.match(stdout, /\nendless +0 +\d+ s +[\d,]+\n$/)
  // biome-ignore lint/suspicious/noControlCharactersInRegex: what steers a terminal is what must not be there
  t.notMatch(stdout, /\u001b/)
  const child = startLlmProxy(['top', '--json', ...address])
  t.teardown(() => child.kill())
  const ended = once(child, 'close')
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  for (let line = 0; line < 2; line += 1) {
    const snapshot = JSON.parse((await lines.next()).value ?? '')
    t.match(snapshot, {
      status: 'ok',
      calls: { engine: 1 },
      open_turns: [{ session_id: 'endless', index: 0 }],
      members: [{ healthy: true }],
      turns: { completed: 0, inexact_share: null },
    })
    t.type(snapshot.per_second.sampled_tokens, 'number')
  }
  child.kill('SIGINT')
  t.strictSame(await ended, [0, null], 'Ctrl+C is how one leaves')
})

t.test('a proxy that asks for a key says so at once', async (t) => {
  const proxy = await startProxy(t, {
    adminKeys: ['an-admin-key-for-tests'],
    viewKeys: ['a-view-key-for-tests'],
  })
  const args = ['top', '--interval', '100ms', '--url', proxy.url]
  t.match(await runLlmProxy(args), { code: 1, stdout: '', stderr: /No key: .*: give --admin-key\n$/ })
  t.match(await runLlmProxy([...args, '--admin-key', 'a-view-key-for-tests']), { code: 0, stdout: /: ok\n/ })
})
