/** Builds the prompts of requests to the embedded engine. */
import type { ChatBody, CompletionBody } from '../../protocol/canonical/request.ts'
import { renderChatMl } from './chat-ml.ts'
import type { EmbeddedModel } from './embedded-model.ts'
import { createRejectionError } from './rejection.ts'

/** Encodes a text. Long texts are encoded off the event loop. */
type Encode = (text: string) => Promise<number[]>

/** A prompt as ids and text. */
export interface EmbeddedPrompt {
  ids: number[]
  /** Returns the text. It is computed on demand, because only playbooks need it, and ids must be decoded for it. */
  text: () => string
}

/**
 * Builds the prompt of a chat request.
 * @throws ProxyError `engine_rejected`, or `unsupported` for content that is not text
 */
export async function buildChatPrompt(encode: Encode, body: ChatBody): Promise<EmbeddedPrompt> {
  if (body.continue_final_message === true) {
    throw createRejectionError('continue_final_message is not supported', 'continue_final_message')
  }
  const text = renderChatMl(body.messages, body.tools ?? null, body.add_generation_prompt !== false)
  return { ids: await encode(text), text: () => text }
}

/** Builds the prompt of a completion request. @throws ProxyError `engine_rejected` */
export async function buildCompletionPrompt(
  model: EmbeddedModel,
  encode: Encode,
  { prompt, echo }: CompletionBody,
): Promise<EmbeddedPrompt> {
  if (echo) throw createRejectionError('echo is not supported', 'echo')
  if (typeof prompt !== 'string') return buildTokenPrompt(model, [...prompt])
  rejectEmpty(prompt)
  return { ids: await encode(prompt), text: () => prompt }
}

/** Builds a prompt from ids. @throws ProxyError `engine_rejected` */
export function buildTokenPrompt(model: EmbeddedModel, ids: number[]): EmbeddedPrompt {
  rejectEmpty(ids)
  checkTokenIds(model, ids, 'prompt')
  return { ids, text: () => model.tokenizer.decode(ids) }
}

function rejectEmpty(prompt: string | number[]): void {
  if (prompt.length === 0) throw createRejectionError('The decoder prompt cannot be empty', 'prompt')
}

/** Checks token ids. @throws ProxyError `engine_rejected` with vLLM's message if an id is not in the vocabulary */
export function checkTokenIds({ tokenizer }: EmbeddedModel, ids: readonly number[], param: string): void {
  const unknown = ids.find((id) => !Number.isInteger(id) || id < 0 || id >= tokenizer.vocabSize)
  if (unknown !== undefined) throw createRejectionError(`Token id ${unknown} is out of vocabulary`, param)
}
