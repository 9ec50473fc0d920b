import t from 'tap'
import type { GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import { PromptIds } from '../../../../../src/protocol/token-ids/prompt-ids.ts'
import { TextPrompt } from '../../../../../src/proxy/session/prompts/text-prompt.ts'
import type { TokenModel } from '../../../../../src/proxy/tokens/model/token-model.ts'

/** The prompt's ids, which count how often all of them are read. */
class CountedIds extends PromptIds {
  reads = 0

  override whole(): Int32Array {
    this.reads += 1
    return super.whole()
  }
}

t.test('what the rest of a response requires is collected only if the response may continue', (t) => {
  const model = { eosTokenIds: [9] } as unknown as TokenModel
  const body = { prompt: 'Hello!', max_tokens: 8 }
  const request = { kind: 'completion', requestId: 'r', sessionId: 's', stream: true, body } as const
  for (const mayContinue of [false, true]) {
    const prompt = new TextPrompt(model, request)
    const promptTokenIds = new CountedIds(Int32Array.of(1, 2))
    const events: GenerationEvent[] = [
      { type: 'start', engine: 'e', promptTokenIds },
      { type: 'delta', content: 'a', tokenIds: [3] },
    ]
    if (mayContinue) t.ok(prompt.continuation)
    t.equal(prompt.read(events), events)
    t.equal(promptTokenIds.reads, mayContinue ? 1 : 0)
    if (mayContinue) t.equal(prompt.continuation.obstacle, undefined)
  }
  t.end()
})
