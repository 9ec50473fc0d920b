/** Each turn has a logprobs mode, although neither the engine nor the operator declares it. */
import t from 'tap'
import { startEngine } from '../helpers/engine.ts'
import { startProxy } from '../helpers/proxy.ts'
import { joinWorker } from '../helpers/relay-rig.ts'

for (const mode of ['local', 'relay'] as const)
  for (const tokenizer of [undefined, 'embedded'])
    t.test(`${mode}, ${tokenizer === undefined ? 'chat' : 'token'} mode`, async (t) => {
      const engine = await startEngine(t)
      const options = mode === 'local' ? { engineUrls: [engine.url] } : { mode }
      // The operator's declaration is wrong.
      const proxy = await startProxy(t, { ...options, tokenizer, logprobsMode: 'processed_logprobs' })
      if (mode === 'relay') joinWorker(t, { proxyUrls: [proxy.url], engineUrls: [engine.url] })
      const messages = [{ role: 'user', content: 'hi' }]
      const responses = [1, 2, 3].map(() =>
        proxy.post('/s/v1/chat/completions', { messages, max_tokens: 4, temperature: 0.7 }),
      )
      for (const { choices } of await Promise.all(responses)) t.equal(choices.length, 1)
      const { trajectories } = await proxy.get('/sessions/s/trajectories?details=sampling')
      t.same(
        trajectories.flatMap((row: { turns: { sampling: { logprobs_mode: string } }[] }) =>
          row.turns.map(({ sampling }) => sampling.logprobs_mode),
        ),
        Array(3).fill('raw_logprobs'),
      )
      t.equal(engine.server.counters.served, 3 + 2, 'the mode is measured once')
      t.equal((await proxy.get('/sessions/s')).turns.length, 3, 'measurements are not recorded')
      t.equal((await proxy.get('/sessions')).sessions.length, 1)
    })
