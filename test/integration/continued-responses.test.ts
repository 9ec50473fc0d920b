/** Responses in token mode whose engine requests are cut anywhere: one response, one stream, one turn. */
import t from 'tap'
import { BODIES, checkTurn, type Json, LENGTH, normalizeResponse, startCutRig } from '../helpers/cut-rig.ts'
import type { CutKind } from '../helpers/cutting-engine.ts'
import { Forwarder } from '../helpers/forwarder.ts'
import { joinWorker, untilWorkers } from '../helpers/relay-rig.ts'
import { IS_FULL } from '../helpers/tier.ts'
import { until } from '../helpers/until.ts'

/** Cuts after these numbers of tokens; with FULL, after each. */
const CUT_POSITIONS = [...Array(LENGTH - 2).keys()].filter((after) => IS_FULL || after % 5 === 0)
/** The positions for other chat dialects, which write the same events of the same engine request. */
const FEW_CUT_POSITIONS = IS_FULL ? [5, 17] : [17]

for (const kind of ['vllm', 'sglang'] as const)
  t.test(`${kind}: a response that is cut anywhere is the one that was not cut`, async (t) => {
    const { sendRequest, engine } = await startCutRig(t, kind)
    // SGLang's completions route reports no ids.
    for (const dialect of Object.keys(BODIES).filter((name) => kind === 'vllm' || name !== 'completions'))
      for (const stream of [true, false]) {
        const full = await sendRequest(dialect, stream, [])
        t.equal(full.turn.annotations.engine_requests, undefined)
        const cutsEverywhere = kind === 'vllm' && dialect === 'chat' && stream
        const positions = dialect === 'completions' ? [0, ...FEW_CUT_POSITIONS] : FEW_CUT_POSITIONS
        for (const after of cutsEverywhere ? CUT_POSITIONS : positions) {
          // The connection of a response that is not streamed delivers all tokens or none.
          const kinds: CutKind[] = stream && after % 2 === 1 ? ['disconnect', 'abort'] : ['abort']
          const version = String(Number(engine.version) + 1)
          const cuts = kinds.map((kind, index) => ({ kind, after: index === 0 ? after : 1, version }))
          const what = `${dialect} ${stream ? 'streamed' : 'complete'} cut after ${after}`
          const cut = await sendRequest(dialect, stream, cuts)
          t.strictSame(normalizeResponse(cut.text, stream), normalizeResponse(full.text, stream), what)
          checkTurn(t, cut.turn, kinds, what)
        }
      }
  })

for (const kind of ['vllm', 'sglang'] as const)
  t.test(`${kind}: an error event after tokens is the loss of the engine`, async (t) => {
    const { sendRequest } = await startCutRig(t, kind)
    const full = await sendRequest('chat', true, [])
    const { text, turn } = await sendRequest('chat', true, [{ kind: 'error', after: 9 }])
    t.strictSame(normalizeResponse(text, true), normalizeResponse(full.text, true))
    checkTurn(t, turn, ['error'], 'cut after 9')
  })

t.test('a text completion that is aborted before its first token is sampled again', async (t) => {
  const { sendRequest } = await startCutRig(t, 'vllm')
  for (const stream of [true, false]) {
    const full = await sendRequest('completions', stream, [], { prompt: 'Hello!' })
    const cut = await sendRequest('completions', stream, [{ kind: 'abort', after: 0 }], { prompt: 'Hello!' })
    t.strictSame(normalizeResponse(cut.text, stream), normalizeResponse(full.text, stream))
    t.same(cut.turn.completion_token_ids, full.turn.completion_token_ids)
    const requests: Json[] = cut.turn.annotations.engine_requests
    t.same(
      requests.map(({ start, end, end_reason }) => [start, end, end_reason]),
      [
        [0, 0, 'abort'],
        [0, LENGTH, 'stop'],
      ],
    )
  }
})

t.test('through a worker, too', async (t) => {
  const { sendRequest, engine } = await startCutRig(t, 'vllm', { mode: 'relay' })
  for (const stream of [true, false]) {
    const full = await sendRequest('chat', stream, [])
    for (const after of [1, 8, 20]) {
      // A lost engine is checked after a second: one position is enough, because the test above covers the others.
      const kinds: CutKind[] = stream && (IS_FULL || after === 8) ? ['disconnect', 'abort'] : ['abort']
      const version = String(Number(engine.version) + 1)
      const cut = await sendRequest(
        'chat',
        stream,
        kinds.map((kind) => ({ kind, after, version })),
      )
      t.strictSame(normalizeResponse(cut.text, stream), normalizeResponse(full.text, stream))
      checkTurn(t, cut.turn, kinds, `cut after ${after}`)
    }
  }
})

t.test(
  'after the loss of a worker, another one continues, and late chunks of the first are dropped',
  async (t) => {
    let link: Forwarder | undefined
    const options = { mode: 'relay', workerGraceMs: 200 } as const
    const { sendRequest, engine, engines, proxy } = await startCutRig(t, 'vllm', options, async (url) => {
      link = await Forwarder.to(t, Number(new URL(url).port))
      return `http://127.0.0.1:${link.port}`
    })
    const full = await sendRequest('chat', true, [])
    const before = engine.generations().length
    const cut = sendRequest('chat', true, [{ kind: 'paused', after: 9 }])
    await until(async () => (await proxy.get('/admin/turns')).turns[0]?.sampled_tokens === 9)
    link!.reject(true)
    link!.cut()
    // The first worker receives the rest while it is disconnected.
    engine.release()
    joinWorker(t, { ...engines, proxyUrls: [proxy.url], workerId: 'w2' })
    const { text, turn } = await cut
    link!.reject(false)
    await untilWorkers(proxy, 'w1', 'w2')
    t.strictSame(normalizeResponse(text, true), normalizeResponse(full.text, true))
    checkTurn(t, turn, ['paused'], 'cut after 9')
    t.strictSame(
      turn.annotations.engine_requests.map(({ end }: Json) => end),
      [9, LENGTH],
    )
    t.equal(engine.generations().length - before, 2, 'one request continues the response')
  },
)
