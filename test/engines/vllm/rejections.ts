/** The proxy rejects the requests that vLLM rejects, with the same status, in each mode, streamed or not. */
import OpenAI from 'openai'
import type { Test } from 'tap'
import { chat, MODEL } from '../parts/agents.ts'
import type { Mode } from '../parts/proxies.ts'

const MESSAGES = [{ role: 'user', content: 'the wind' }]
const schema = (name: string, value: object) => ({
  response_format: { type: 'json_schema', json_schema: { name, schema: value } },
})

/** vLLM rejects some of these requests only after status 200, with an event. */
const REJECTED: Record<string, object> = {
  'a negative temperature': { temperature: -1 },
  'a top_p above 1': { top_p: 2 },
  'a top_k below -1': { top_k: -5 },
  'a repetition_penalty of 0': { repetition_penalty: 0 },
  'more alternatives than the server supports': { logprobs: true, top_logprobs: 25 },
  'a logit_bias beyond the vocabulary': { logit_bias: { 999999: 1 } },
  'allowed ids beyond the vocabulary': { allowed_token_ids: [999999] },
  'more min_tokens than max_tokens': { min_tokens: 50, max_tokens: 5 },
  'an invalid regex': { structured_outputs: { regex: '[a-' } },
  'an invalid grammar': { structured_outputs: { grammar: 'root ::= (' } },
  'an invalid structural tag': { structured_outputs: { structural_tag: '{' } },
  'two constraints': { structured_outputs: { regex: 'a', choice: ['b'] } },
  'a schema of an unknown type': schema('x', { type: 'nonsense' }),
  'an empty bad word': { bad_words: [''] },
  'no messages': { messages: [] },
  'a required tool call without tools': { tool_choice: 'required' },
}
const NOT_FOUND: Record<string, object> = { 'an unknown model': { model: 'nope' } }

async function getStatus(url: string, body: object): Promise<number | undefined> {
  try {
    await chat(url, { model: MODEL, messages: MESSAGES, max_tokens: 8, ...body })
    return 200
  } catch (error) {
    if (error instanceof OpenAI.APIError) return error.status ?? (error.code as unknown as number)
    throw error
  }
}

export async function checkRejections(t: Test, url: string, modes: readonly Mode[]): Promise<void> {
  for (const [status, cases] of [
    [400, REJECTED],
    [404, NOT_FOUND],
  ] as const)
    for (const [name, body] of Object.entries(cases)) {
      t.equal(await getStatus(url, body), status, `${name}: vLLM itself rejects it`)
      for (const mode of modes)
        for (const stream of [false, true])
          t.equal(
            await getStatus(`${mode.url}/rejections-${mode.name}`, { ...body, stream }),
            status,
            `${name}: ${mode.name}, ${stream ? 'streamed' : 'complete'}`,
          )
    }
}
