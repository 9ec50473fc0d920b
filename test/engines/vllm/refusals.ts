/** Requests that vLLM rejects are rejected with its status in both modes, streamed or not. */
import OpenAI from 'openai'
import type { Test } from 'tap'
import { chat, MODEL } from '../parts/agents.ts'
import type { Mode } from '../parts/proxies.ts'

const MESSAGES = [{ role: 'user', content: 'the wind' }]
const schema = (name: string, of: object) => ({
  response_format: { type: 'json_schema', json_schema: { name, schema: of } },
})

/** vLLM rejects some requests before it streams, and some only afterwards, as an event after status 200. */
const REJECTED: Record<string, object> = {
  'a negative temperature': { temperature: -1 },
  'a top_p above 1': { top_p: 2 },
  'a top_k below -1': { top_k: -5 },
  'a repetition_penalty of 0': { repetition_penalty: 0 },
  'more alternatives than the server gives': { logprobs: true, top_logprobs: 25 },
  'a logit_bias beyond the vocabulary': { logit_bias: { 999999: 1 } },
  'allowed ids beyond the vocabulary': { allowed_token_ids: [999999] },
  'more min_tokens than max_tokens': { min_tokens: 50, max_tokens: 5 },
  'a regex that is none': { structured_outputs: { regex: '[a-' } },
  'a grammar that is none': { structured_outputs: { grammar: 'root ::= (' } },
  'a structural tag that is none': { structured_outputs: { structural_tag: '{' } },
  'two constraints': { structured_outputs: { regex: 'a', choice: ['b'] } },
  'a schema of no type': schema('x', { type: 'nonsense' }),
  'an empty bad word': { bad_words: [''] },
  'no messages': { messages: [] },
  'a forced call without tools': { tool_choice: 'required' },
}
const NOT_FOUND: Record<string, object> = { 'a model that it has not': { model: 'nope' } }

async function getStatus(url: string, body: object): Promise<number | undefined> {
  try {
    await chat(url, { model: MODEL, messages: MESSAGES, max_tokens: 8, ...body })
    return 200
  } catch (error) {
    if (error instanceof OpenAI.APIError) return error.status ?? (error.code as unknown as number)
    throw error
  }
}

export async function checkRefusals(t: Test, url: string, modes: readonly Mode[]): Promise<void> {
  for (const [status, cases] of [
    [400, REJECTED],
    [404, NOT_FOUND],
  ] as const)
    for (const [name, body] of Object.entries(cases)) {
      t.equal(await getStatus(url, body), status, `${name}: vLLM itself rejects it`)
      for (const mode of modes)
        for (const stream of [false, true])
          t.equal(
            await getStatus(`${mode.url}/refusals-${mode.name}`, { ...body, stream }),
            status,
            `${name}: ${mode.name}, ${stream ? 'streamed' : 'complete'}`,
          )
    }
}
