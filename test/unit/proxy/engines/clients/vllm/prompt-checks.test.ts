import t from 'tap'
import type { GenerationEvent } from '../../../../../../src/protocol/canonical/events.ts'
import { PromptIds } from '../../../../../../src/protocol/token-ids/prompt-ids.ts'
import { PromptChecks } from '../../../../../../src/proxy/engines/clients/vllm/prompt-checks.ts'
import type { TokenRequest } from '../../../../../../src/proxy/engines/clients/wire/request.ts'

t.test('a prompt that is reported late and differs has the next ones repeated', async (t) => {
  const sent = PromptIds.of(1, 2)
  const checks = new PromptChecks()
  const usage = { prompt_tokens: 1, completion_tokens: 0, total_tokens: 1 }
  async function* events(end: object): AsyncGenerator<GenerationEvent[]> {
    yield [{ type: 'start', engine: 'e', promptTokenIds: sent }]
    yield [{ type: 'end', finishReason: 'stop', usage, ...end }]
  }
  const watch = async (end: object) => {
    const request = { promptTokenIds: sent } as TokenRequest
    for await (const _ of checks.watch('e', request, events(end)));
  }
  t.equal(checks.next(), true)
  t.equal(checks.next(), false)
  await watch({ promptTokenIds: PromptIds.of(9) })
  t.equal(checks.next(), true)
  t.equal(checks.next(), true, 'all of them')
  await t.rejects(watch({}), { code: 'engine_failed', message: /after 1 tokens, and was sent 2/ })
})
