import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import type { ChatBody } from '../../../../../src/protocol/canonical/request.ts'
import {
  EffortNegotiation,
  EffortRegistry,
} from '../../../../../src/proxy/engines/dispatch/learned-efforts.ts'

const chat = (effort: string): ChatBody => ({ model: 'm', messages: [], reasoning_effort: effort })
const QWEN = 'Unexpected reasoning effort high. Supported types are xhigh (default), medium, and low'
const rejection = (message: string) => new ProxyError('engine_rejected', message, { status: 400 })

/**
 * Creates the effort negotiation of a request; `send` returns the effort of the next attempt at one engine.
 */
function negotiate(learned: EffortRegistry, effort: string) {
  const negotiation = new EffortNegotiation(learned, chat(effort))
  return { negotiation, send: () => negotiation.adaptBody('engine')!.reasoning_effort }
}

t.test('efforts that an error lists are stored once the retry has succeeded', async (t) => {
  const learned = new EffortRegistry()
  const { negotiation, send } = negotiate(learned, 'high')
  t.equal(send(), 'high')
  t.ok(negotiation.checkRejection('engine', rejection(QWEN)))
  t.equal(send(), 'xhigh')
  t.equal(negotiate(learned, 'high').send(), 'high', 'another request meanwhile')
  negotiation.confirm()
  t.equal(negotiate(learned, 'high').send(), 'xhigh')
  t.strictSame([...learned.getRejected('other', 'm'), ...learned.getRejected('engine', 'n')], [])
  learned.forget('engine')
  t.equal(negotiate(learned, 'high').send(), 'high')
})

t.test('an engine that reports a template error with HTTP 500 is understood as well', async (t) => {
  const { negotiation, send } = negotiate(new EffortRegistry(), 'high')
  send()
  const message = `the engine at http://e responded with HTTP 500: ${QWEN}`
  t.ok(negotiation.checkRejection('engine', new ProxyError('engine_failed', message)))
  t.equal(send(), 'xhigh')
})

t.test('`none` is not omitted for a model that uses harmony', async (t) => {
  const { negotiation, send } = negotiate(new EffortRegistry(), 'none')
  send()
  const error = rejection("Harmony does not support reasoning_effort='none'")
  t.notOk(negotiation.checkRejection('engine', error))
  t.equal(negotiation.toAgentError(error), error)
})

t.test('the agent gets the error of its own effort if the engine accepts no replacement', async (t) => {
  const { negotiation, send } = negotiate(new EffortRegistry(), 'none')
  send()
  const first = rejection("reasoning_effort does not support 'none' with this model")
  t.ok(negotiation.checkRejection('engine', first))
  t.equal(send(), undefined)
  const second = rejection('Unrecognized request argument supplied: chat_template_kwargs')
  t.notOk(negotiation.checkRejection('engine', second))
  t.equal(negotiation.toAgentError(second), first)
  const other = rejection('the prompt is too long')
  t.equal(negotiation.toAgentError(other), other)
})

t.test('other errors have no effect', async (t) => {
  for (const thrown of [
    new ProxyError('engine_lost', QWEN),
    rejection('temperature is too high'),
    new Error(QWEN),
  ]) {
    const { negotiation, send } = negotiate(new EffortRegistry(), 'high')
    send()
    t.notOk(negotiation.checkRejection('engine', thrown))
  }
})

t.test('models are evicted before their names fill the memory', async (t) => {
  const learned = new EffortRegistry()
  const rejected = new Set(['high'])
  for (let model = 0; model <= 1_000; model += 1) learned.learn('engine', `m${model}`, rejected)
  t.equal(learned.getRejected('engine', 'm0').size, 0)
  t.equal(learned.getRejected('engine', 'm1000').size, 1)
})
