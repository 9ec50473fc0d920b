/** A session that grows by the same amount with each turn. */
import { generateProse } from './text.ts'

const MAX_TOKENS = 100
/** The size of a user message: with the completion's 500 bytes, a turn adds 2 KB to the conversation. */
const USER_BYTES = 1_500

interface ChatCompletion {
  choices: { message: { role: string; content: string }; token_ids: number[] }[]
  prompt_token_ids: number[]
}

/**
 * Runs one agent's conversation. Each turn adds 2 KB: a user message and the completion.
 * @param url of chat completions
 */
export async function converse(
  url: string,
  seed: number,
  turns: number,
): Promise<{ textBytes: number; ids: number }> {
  const messages = [{ role: 'system', content: 'You mend programs.' }]
  let ids = 0
  for (let turn = 0; turn < turns; turn += 1) {
    messages.push({ role: 'user', content: generateProse(USER_BYTES, seed * turns + turn) })
    const body = JSON.stringify({
      model: 'stand-in',
      messages,
      max_tokens: MAX_TOKENS,
      return_token_ids: true,
    })
    const response = await fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body,
    })
    if (!response.ok) throw new Error(`turn ${turn} failed: ${await response.text()}`)
    const completion = (await response.json()) as ChatCompletion
    const { message, token_ids: tokenIds } = completion.choices[0]!
    messages.push({ role: 'assistant', content: message.content })
    ids = completion.prompt_token_ids.length + tokenIds.length
  }
  return { textBytes: messages.reduce((sum, { content }) => sum + Buffer.byteLength(content), 0), ids }
}
