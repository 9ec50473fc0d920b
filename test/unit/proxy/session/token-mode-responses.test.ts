/** How token mode processes an engine's response, and how the next request continues it. */
import t, { type Test } from 'tap'
import { ProxyError } from '../../../../src/base/errors.ts'
import { intercept } from '../../../../src/base/interceptor.ts'
import type { ChatMessage } from '../../../../src/protocol/canonical/messages.ts'
import { createChatDecoder } from '../../../../src/proxy/session/prompts/completion-decoder.ts'
import type { TurnRecord, TurnStore } from '../../../../src/proxy/store/port/turn-store.ts'
import type { TokenModel } from '../../../../src/proxy/tokens/model/token-model.ts'
import { openMemoryStore } from '../../../helpers/store-in-process.ts'
import { createTokenModeRig, type FakeCompletion } from '../../../helpers/token-mode-rig.ts'
import { loadTokenModel } from './conversation-player.ts'

const model = loadTokenModel('qwen2_5')
const user: ChatMessage = { role: 'user', content: 'Count.' }
const assistantMessage = (content: string): ChatMessage => ({ role: 'assistant', content })
const getPrompt = ({ annotations }: TurnRecord) => JSON.parse(annotations).prompt

async function setUp(t: Test, responses: FakeCompletion[], store?: TurnStore) {
  return createTokenModeRig(t, model as TokenModel, () => responses.shift()!, store)
}

t.test('a response with text but without ids is a failure, because it would be empty', async (t) => {
  const usage = { prompt_tokens: 9, completion_tokens: 2, total_tokens: 11 }
  const responses: FakeCompletion[] = [
    { text: 'One.', isWithoutIds: true },
    { text: 'One.', isWithoutIds: true, usage },
    { text: '', isWithoutIds: true, usage },
  ]
  for (const response of responses) {
    const { sendRequest, store } = await setUp(t, [response])
    await t.rejects(sendRequest([user]), { code: 'engine_failed', message: /no token ids/ })
    t.match(await Array.fromAsync(store.readTurns('s')), [
      { status: 'failed', exact: false, error: { code: 'engine_failed' } },
    ])
  }
})

t.test('an empty response is valid', async (t) => {
  const turn = await (await setUp(t, [{ text: '', isWithoutIds: true }])).sendRequest([user])
  t.match(turn, { status: 'completed', exact: true, finishReason: 'stop' })
})

t.test('tokens of reasoning are counted when the engine reports a total', async (t) => {
  const qwen3 = loadTokenModel('qwen3') as TokenModel
  const countIn = async (text: string) => {
    const usage = { prompt_tokens: 9, completion_tokens: 9, total_tokens: 18 }
    const { sendRequest } = await createTokenModeRig(t, qwen3, () => ({ text, usage }))
    return JSON.parse((await sendRequest([user])).usage!).completion_tokens_details?.reasoning_tokens
  }
  const thought = '\nHm, é 🙂 three.\n'
  const count = qwen3.tokenizer.encode(thought).length
  t.equal(await countIn(`<think>${thought}</think>\n\nThree.`), count)
  t.equal(await countIn(`<think>${thought}`), count, 'cut')
  t.equal(await countIn('Three.'), undefined, 'no reasoning')
  t.equal(await countIn(`I say <think>${thought}</think>`), undefined, 'a text that mentions the marker')
})

t.test(
  'no request continues a turn whose commit failed, because its parent would not be recorded',
  async (t) => {
    let isFull = true
    const fullOnce = intercept(await openMemoryStore(), {
      closeTurn: async (proceed, outcome) => {
        if (!isFull || outcome.status !== 'completed') return proceed()
        isFull = false
        throw new ProxyError('store_failed', 'the disk is full')
      },
    })
    const responses = [{ text: 'One.' }, { text: 'Two.' }, { text: 'Three.' }]
    const { sendRequest, store } = await setUp(t, responses, fullOnce)
    await t.rejects(sendRequest([user]), { code: 'store_failed' })
    const next = await sendRequest([user, assistantMessage('One.'), user])
    t.match(getPrompt(next), { reason: 'first', from: undefined })
    const later = await sendRequest([user, assistantMessage('One.'), user, assistantMessage('Two.'), user])
    t.match(getPrompt(later), { reason: 'extended', from: next.turnId })
    const completed = (await Array.fromAsync(store.readTurns('s'))).filter(
      ({ status }) => status === 'completed',
    )
    t.equal(completed.length, 2)
  },
)

t.test('the next prompt continues from the ids that the engine reports as its prompt', async (t) => {
  const seen = [...model.tokenizer.encode('Another prompt than the one that was sent.')]
  const { sendRequest } = await setUp(t, [{ text: 'One.', reportedPromptIds: seen }, { text: 'Two.' }])
  const first = await sendRequest([user])
  t.match(getPrompt(first), { mismatched: true })
  t.same([...first.promptTokenIds], seen)
  const next = await sendRequest([user, assistantMessage('One.'), user])
  t.match(getPrompt(next), { reason: 'extended', from: first.turnId, mismatched: false })
  const shared = [...seen, ...first.completionTokenIds]
  t.same([...next.promptTokenIds].slice(0, shared.length), shared)
})

t.test(
  "a stop string belongs to the text if the agent requests it, by vLLM's field or SGLang's",
  async (t) => {
    const contentWith = async (fields: object) => {
      const { sendRequest } = await setUp(t, [{ text: 'One. Two. Three.' }])
      return (await sendRequest([user], { stop: 'Two.', ...fields })).completionText
    }
    t.equal(await contentWith({}), 'One. ')
    for (const fields of [{ include_stop_str_in_output: true }, { no_stop_trim: true }]) {
      t.equal(await contentWith(fields), 'One. Two.', JSON.stringify(fields))
    }
  },
)

t.test(
  'tokens that an engine writes as ids are texts to the agent, and their alternatives too',
  async (t) => {
    const { tokenizer } = model
    const getId = (text: string) => tokenizer.encode(text)[0]!
    const entry = (token: string, bytes: number[] | null = null) => ({ token, logprob: -1, bytes })
    const asId = (text: string) => entry(`token_id:${getId(text)}`)
    const asText = (text: string) => entry(text, [...Buffer.from(text)])
    const logprobsContent = [
      { ...asId('Hi'), top_logprobs: [asId('sea'), entry('a text')] },
      { ...entry('token'), top_logprobs: [] },
    ]
    const delta = { type: 'delta', tokenIds: [getId('Hi')], logprobs: [-1], logprobsContent } as const
    const read = async (events: readonly object[], body = {}) => {
      const options = { promptText: 'x', forcesCall: false }
      const decoder = createChatDecoder(model as TokenModel, { messages: [], ...body }, options)
      return (await decoder.read(events as never)) as { logprobsContent?: object[] }[]
    }
    const [asTexts] = await read([delta])
    t.strictSame(asTexts!.logprobsContent, [
      { ...asText('Hi'), top_logprobs: [asText('sea'), entry('a text')] },
      logprobsContent[1],
    ])
    const [asIds] = await read([delta], { return_tokens_as_token_ids: true })
    t.strictSame(asIds!.logprobsContent, logprobsContent, 'an agent that requests ids gets them')
    const texts = { ...delta, logprobsContent: [logprobsContent[1]!] }
    t.strictSame((await read([texts]))[0]!.logprobsContent, texts.logprobsContent)
    const { logprobsContent: _, ...without } = delta
    t.equal((await read([without]))[0]!.logprobsContent, undefined)
    t.equal((await read([{ ...delta, logprobsContent: [] }]))[0]!.logprobsContent?.length, 0)
  },
)
