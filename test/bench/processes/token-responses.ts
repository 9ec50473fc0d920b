/**
 * `/v1/completions` as vLLM serves it to clients that send ids: streamed, one token per chunk, with the id as its text;
 * with `return_token_ids`, the first chunk contains the prompt's ids, and each chunk its own. A streamed completion is
 * the one that replaying agents echo, in Qwen3's format: a text and a tool call. A completion that is not streamed has
 * the first words of this text.
 *
 * Fields as in `CompletionResponseStreamChoice` of `vllm/entrypoints/openai/completion/protocol.py`.
 */
import { loadTokenizer } from '../../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { COMPLETION_TOKENS } from '../parts/replay-job.ts'
import { COMPLETION_TEXT, TOOL_CALL } from '../parts/replayed-conversation.ts'

interface TokenResponses {
  /**
   * @param promptIds JSON of the list of ids; undefined: the client did not request ids
   * @param index the index among the completion's {@link COMPLETION_TOKENS} tokens
   */
  chunk(promptIds: Buffer | undefined, index: number): Buffer
  /** Returns the events after the last token. */
  end(promptTokens: number): string
  /** Returns a complete response of this many tokens. */
  complete(promptIds: Buffer | undefined, promptTokens: number, tokens: number): Buffer
}

const PROMPT = '"prompt":'
const COMMA = 0x2c

/**
 * Creates the chunks.
 * @param root members of all chunks
 * @param directory the folder of the model's tokenizer
 */
export function createTokenResponses(root: string, directory: string): TokenResponses {
  const tokenizer = loadTokenizer(directory)
  // Models write JSON with the spaces of Python; the agent's echo has none.
  const path = JSON.stringify(TOOL_CALL.arguments.path)
  const toolCall = `{"name": "${TOOL_CALL.name}", "arguments": {"path": ${path}}}`
  const text = `${COMPLETION_TEXT}\n<tool_call>\n${toolCall}\n</tool_call>`
  const ids = [...tokenizer.encode(text), tokenizer.eosTokenId!]
  if (ids.length !== COMPLETION_TOKENS) throw new Error(`the completion has ${ids.length} tokens`)
  const head = `data: {${root},"object":"text_completion","choices":[{"index":0,"text":`
  const chunks = ids.map((id, index) => {
    const isLast = index === ids.length - 1
    const textJson = JSON.stringify(isLast ? '' : tokenizer.decode([id]))
    const logprob = Math.fround(-((id % 997) + 1) / 1499)
    const token = JSON.stringify(`token_id:${id}`)
    const lists = `"text_offset":[${index}],"token_logprobs":[${logprob}],"tokens":[${token}],"top_logprobs":[{${token}:${logprob}}]`
    const finish = isLast ? '"stop"' : 'null'
    const before = `${head}${textJson},"logprobs":{${lists}},"finish_reason":${finish},"stop_reason":null,"prompt_token_ids":`
    const after = (tokenIds: string) => `,"token_ids":${tokenIds}}],"usage":null}\n\n`
    return {
      before: Buffer.from(before),
      after: Buffer.from(after(`[${id}]`)),
      withIds: Buffer.from(`${before}null${after(`[${id}]`)}`),
      withoutIds: Buffer.from(`${before}null${after('null')}`),
    }
  })
  return {
    chunk(promptIds, index) {
      const { before, after, withIds, withoutIds } = chunks[index]!
      if (promptIds === undefined) return withoutIds
      return index === 0 ? Buffer.concat([before, promptIds, after]) : withIds
    },
    end(promptTokens) {
      const usage = `{"prompt_tokens":${promptTokens},"completion_tokens":${COMPLETION_TOKENS},"total_tokens":${promptTokens + COMPLETION_TOKENS}}`
      return `data: {${root},"object":"text_completion","choices":[],"usage":${usage}}\n\ndata: [DONE]\n\n`
    },
    complete(promptIds, promptTokens, tokens) {
      const sampled = [...ids.slice(0, tokens - 1), tokenizer.eosTokenId!]
      const names = sampled.map((id) => `token_id:${id}`)
      const token_logprobs = sampled.map((id) => Math.fround(-((id % 997) + 1) / 1499))
      const choice = {
        index: 0,
        text: tokenizer.decode(sampled.slice(0, -1)),
        logprobs: {
          token_logprobs,
          tokens: names,
          top_logprobs: names.map((name, index) => ({ [name]: token_logprobs[index] })),
        },
        finish_reason: 'stop',
        stop_reason: null,
        ...(promptIds && { token_ids: sampled, prompt_token_ids: JSON.parse(promptIds.toString()) }),
      }
      const usage = {
        prompt_tokens: promptTokens,
        completion_tokens: tokens,
        total_tokens: promptTokens + tokens,
      }
      const body = JSON.stringify({ object: 'text_completion', choices: [choice], usage })
      return Buffer.from(`{${root},${body.slice(1)}`)
    },
  }
}

/**
 * Returns the list of ids that a body contains as its prompt, brackets included.
 * @throws Error if it has none
 */
export function getPromptIds(body: Buffer): Buffer {
  const start = body.indexOf(PROMPT) + PROMPT.length
  const end = body.indexOf(']', start) + 1
  if (start < PROMPT.length || end === 0 || body[start] !== 0x5b) throw new Error('the body has no ids')
  return body.subarray(start, end)
}

/**
 * Counts the ids in a list that is not empty. Byte by byte, because searching for each comma takes ten times as long.
 */
export function countIds(list: Buffer): number {
  let count = 1
  for (let index = 0; index < list.length; index += 1) if (list[index] === COMMA) count += 1
  return count
}
