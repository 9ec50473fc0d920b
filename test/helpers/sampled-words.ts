/**
 * The words that the fakes of vLLM and SGLang sample, the same each time, and the common parts of their wire formats.
 */

export interface Token {
  id: number
  text: string
}

const WORDS = ['Hello', ' there', ',', ' agent', '!']
const END_OF_TURN = { id: 2, text: '' }

/** Samples up to `limit` tokens, the end-of-turn token included; without end if `isEndless`. */
export function* sampleWords(limit: number, isEndless = false): Generator<Token> {
  for (let count = 0; isEndless || count < Math.min(limit, WORDS.length); count += 1) {
    const word = count % WORDS.length
    yield { id: 1_000 + word, text: WORDS[word]! }
  }
  if (!isEndless && limit > WORDS.length) yield END_OF_TURN
}

export function finishReason(tokens: readonly Token[]): 'stop' | 'length' {
  return tokens.at(-1) === END_OF_TURN ? 'stop' : 'length'
}

export function getUsage(prompt: ArrayLike<unknown>, completion: ArrayLike<unknown>) {
  const [prompt_tokens, completion_tokens] = [prompt.length, completion.length]
  return { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
}

const getLogprob = ({ id }: Token) => -id / 1_000
const getText = ({ text }: Token) => text

/** Builds logprobs as in Chat Completions. */
export function chatLogprobs(tokens: readonly Token[], name: (token: Token) => string = getText) {
  const content = tokens.map((token) => ({
    token: name(token),
    logprob: getLogprob(token),
    bytes: [...Buffer.from(token.text)],
    top_logprobs: [],
  }))
  return { content }
}

/** Builds logprobs as in Completions. */
export function listLogprobs(tokens: readonly Token[], name: (token: Token) => string = getText) {
  return {
    tokens: tokens.map(name),
    token_logprobs: tokens.map(getLogprob),
    top_logprobs: null,
    text_offset: [],
  }
}
