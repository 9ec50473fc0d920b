import t from 'tap'
import type { GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import { PromptIds } from '../../../../../src/protocol/token-ids/prompt-ids.ts'
import { TextPrompt } from '../../../../../src/proxy/session/prompts/text-prompt.ts'
import type { TokenModel } from '../../../../../src/proxy/tokens/model/token-model.ts'
import { loadTokenModel } from '../conversation-player.ts'

/** Prompt ids that count how often the complete list is read. */
class CountedIds extends PromptIds {
  reads = 0

  override toArray(): Int32Array {
    this.reads += 1
    return super.toArray()
  }
}

t.test('the data to continue a response is collected only if the response may continue', (t) => {
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

t.test('the text after a cut follows the text of an engine that begins with the prompt', async (t) => {
  const model = loadTokenModel('qwen3') as TokenModel
  const encode = (text: string) => [...model.tokenizer.encode(text)]
  // The prompt ends within a character; vLLM then sends the text of prompt and response.
  const [start, ...rest] = encode('𒀀')
  t.not(rest.length, 0)
  const promptIds = [...encode('The end'), start!]
  const [sampled, later] = [encode(' and more'), encode(' text')]
  const fullText = model.tokenizer.decode([...promptIds, ...sampled])
  for (const received of [' and', '', fullText.slice(0, -2), fullText, 'another text']) {
    const body = { prompt: promptIds, max_tokens: 80 }
    const prompt = new TextPrompt(model, {
      ...{ kind: 'completion', requestId: 'r', sessionId: 's', stream: true },
      body,
    })
    const planner = prompt.continuation
    await prompt.read([
      { type: 'start', engine: 'e', promptTokenIds: new PromptIds(Int32Array.from(promptIds)) },
      { type: 'delta', content: received, tokenIds: sampled },
    ])
    t.equal(planner.obstacle, undefined)
    planner.plan(sampled)
    const read = async () => prompt.read([{ type: 'delta', tokenIds: later }])
    if (received === 'another text') {
      await t.rejects(read, { code: 'engine_failed' })
      continue
    }
    const texts = (await read()).map((event) => (event.type === 'delta' ? (event.content ?? '') : ''))
    const expected = received.startsWith('The') ? `${fullText} text` : ' and more text'
    t.equal(received + texts.join(''), expected, received)
  }
})

t.test('a response that was cut before its first token is sampled by the same request again', async (t) => {
  const model = loadTokenModel('qwen3') as TokenModel
  for (const text of ['Hello!', [1, 2]]) {
    const body = { prompt: text, max_tokens: 8 }
    const request = { kind: 'completion', requestId: 'r', sessionId: 's', stream: true, body } as const
    const prompt = new TextPrompt(model, request)
    const { continuation } = prompt
    t.equal(continuation.obstacle, undefined)
    const rest = continuation.plan([])
    t.same('request' in rest && rest.request.body, body)
    const events: GenerationEvent[] = [
      { type: 'start', engine: 'e', promptTokenIds: PromptIds.of(1, 2) },
      { type: 'delta', content: 'a', tokenIds: [3] },
    ]
    t.equal(await prompt.read(events), events, 'the start is forwarded')
  }
})

t.test('a text completion whose prompt ids the engine does not report cannot continue', async (t) => {
  const model = { eosTokenIds: [9] } as unknown as TokenModel
  const body = { prompt: 'Hello!', max_tokens: 8 }
  const request = { kind: 'completion', requestId: 'r', sessionId: 's', stream: true, body } as const
  const prompt = new TextPrompt(model, request)
  const { continuation } = prompt
  await prompt.read([{ type: 'start', engine: 'e', promptTokenIds: undefined }])
  t.match(continuation.obstacle, /did not report the token ids of its prompt/)
})
