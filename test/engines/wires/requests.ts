/**
 * The requests whose wire the tests record: one for each route that the clients use, and requests that engines reject.
 */
import type { GenerationRequest } from '../../../src/protocol/canonical/request.ts'
import type { EngineClient } from '../../../src/proxy/engines/port/engine-client.ts'
import { TOKENIZER_TEXT } from '../../../src/proxy/engines/port/expected-tokenizer.ts'
import { chatRequest, completionRequest, noAbort, tokenRequest } from '../../conformance/engine-client.ts'
import { FUNCTIONS, MODEL } from '../parts/agents.ts'

export interface RecordedRequest {
  request(stream: boolean): GenerationRequest
  /** Status with which both engines reject it. */
  rejectedStatus?: number
}

/** The ids of `<|im_start|>user\nthe wind<|im_end|>\n<|im_start|>assistant\n` for a Qwen3. */
const PROMPT = [151644, 872, 198, 1782, 9956, 151645, 198, 151644, 77091, 198]
const SAMPLING = { model: MODEL, temperature: 1, top_p: 1, max_tokens: 24, seed: 11 }
const messages = [{ role: 'user', content: 'the wind' }]
const tools = FUNCTIONS.map((each) => ({ type: 'function', function: each }))
const properties = { a: { type: 'integer' } }
const schema = { type: 'object', properties, required: ['a'], additionalProperties: false }
const response_format = { type: 'json_schema', json_schema: { name: 'x', schema } }

const token =
  (body: object, prompt = PROMPT) =>
  (stream: boolean) =>
    tokenRequest(prompt, { ...SAMPLING, ...body }, stream)
const chat = (body: object) => (stream: boolean) => chatRequest({ ...SAMPLING, messages, ...body }, stream)

export const REQUESTS: Record<string, RecordedRequest> = {
  chat: { request: chat({}) },
  'chat with tools': { request: chat({ tools, max_tokens: 60 }) },
  'chat that is refused': { request: chat({ temperature: -1 }), rejectedStatus: 400 },
  'chat that is refused late': {
    request: chat({
      response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'nonsense' } } },
    }),
    rejectedStatus: 400,
  },
  'token mode': { request: token({}) },
  'token mode with alternatives': { request: token({ logprobs: true, top_logprobs: 2, max_tokens: 6 }) },
  'token mode with a schema': { request: token({ response_format }) },
  'token mode with a stop string': { request: token({ stop: ['e'] }) },
  // vLLM 0.32 reports the version of each token only on its route for token ids.
  'token mode with weight versions': {
    request: (stream) => ({ ...token({})(stream), record: { weightVersions: true } }),
  },
  'token mode that is refused': { request: token({ top_p: 2 }), rejectedStatus: 400 },
  'token mode that is refused late': {
    request: token({ min_tokens: 50, max_tokens: 5 }),
    rejectedStatus: 400,
  },
  'completion of text': {
    request: (stream) => completionRequest({ ...SAMPLING, prompt: 'the wind' }, stream),
  },
  'completion of ids': {
    request: (stream) => completionRequest({ ...SAMPLING, prompt: PROMPT }, stream),
  },
}

/** Other requests of clients to engines. Each returns the parsed response. */
export const QUESTIONS: Record<string, (client: EngineClient) => Promise<unknown> | undefined> = {
  'how it is, and what its tokenizer makes of a text and of chats': (client) =>
    client.checkHealth(noAbort, { text: TOKENIZER_TEXT, chats: true }),
  'how many tokens a chat has': (client) =>
    client.countTokens?.({ model: MODEL, messages: [{ role: 'user', content: 'the wind' }] }, noAbort),
  'what tokens read like': (client) => client.getTokenTexts?.(MODEL, Int32Array.from(PROMPT), noAbort),
  'how probable tokens are': (client) =>
    client.score?.(
      {
        model: MODEL,
        promptTokenIds: Int32Array.from(PROMPT.slice(0, 3)),
        completionTokenIds: Int32Array.from(PROMPT.slice(3)),
        alternatives: 2,
      },
      noAbort,
    ),
}
