import t from 'tap'
import { PromptIds } from '../../../../../../src/protocol/token-ids/prompt-ids.ts'
import { PromptChecks } from '../../../../../../src/proxy/engines/clients/vllm/prompt-checks.ts'
import type { TokenRequest } from '../../../../../../src/proxy/engines/clients/wire/request.ts'
import { DISCARD } from '../../../../../helpers/event-stream.ts'

t.test('a differing prompt that is reported late causes checks of the next ones', (t) => {
  const sent = PromptIds.of(1, 2)
  const checks = new PromptChecks()
  const usage = { prompt_tokens: 1, completion_tokens: 0, total_tokens: 1 }
  const watch = (end: object) => {
    const sink = checks.watch('e', { promptTokenIds: sent } as TokenRequest, DISCARD)
    void sink.write([{ type: 'start', engine: 'e', promptTokenIds: sent }])
    void sink.write([{ type: 'end', finishReason: 'stop', usage, ...end }])
  }
  t.equal(checks.startRequest(), true)
  t.equal(checks.startRequest(), false)
  watch({ promptTokenIds: PromptIds.of(9) })
  t.equal(checks.startRequest(), true)
  t.equal(checks.startRequest(), true, 'all of them')
  t.throws(() => watch({}), { code: 'engine_failed', message: /after 1 tokens, and was sent 2/ })
  t.end()
})
