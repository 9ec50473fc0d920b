import type { ChatBody, CompletionBody } from '../../protocol/canonical/request.ts'
import { renderChatMl } from './chat-ml.ts'
import type { EmbeddedModel } from './embedded-model.ts'
import { rejection } from './rejection.ts'

/** Text to ids; a long one is encoded elsewhere, so that nobody waits for it. */
type Encode = (text: string) => Promise<number[]>

/** What a completion follows. */
export interface EmbeddedPrompt {
  ids: number[]
  /** A function, because only playbook rules look at it and a prompt of ids must be decoded for them. */
  text: () => string
}

/** @throws ProxyError `engine_rejected`, or `unsupported` for content that is not text */
export async function chatPrompt(encode: Encode, body: ChatBody): Promise<EmbeddedPrompt> {
  if (body.continue_final_message === true) {
    throw rejection('continue_final_message is not supported', 'continue_final_message')
  }
  const text = renderChatMl(body.messages, body.tools ?? null, body.add_generation_prompt !== false)
  return { ids: await encode(text), text: () => text }
}

/** @throws ProxyError `engine_rejected` */
export async function completionPrompt(
  model: EmbeddedModel,
  encode: Encode,
  { prompt, echo }: CompletionBody,
): Promise<EmbeddedPrompt> {
  if (echo) throw rejection('echo is not supported', 'echo')
  if (typeof prompt !== 'string') return tokenPrompt(model, [...prompt])
  refuseEmpty(prompt)
  return { ids: await encode(prompt), text: () => prompt }
}

/** @throws ProxyError `engine_rejected` */
export function tokenPrompt(model: EmbeddedModel, ids: number[]): EmbeddedPrompt {
  refuseEmpty(ids)
  checkTokenIds(model, ids, 'prompt')
  return { ids, text: () => model.tokenizer.decode(ids) }
}

function refuseEmpty(prompt: string | number[]): void {
  if (prompt.length === 0) throw rejection('The decoder prompt cannot be empty', 'prompt')
}

/** @throws ProxyError `engine_rejected` in vLLM's words if an id is none of the tokenizer's */
export function checkTokenIds({ tokenizer }: EmbeddedModel, ids: readonly number[], param: string): void {
  const unknown = ids.find((id) => !Number.isInteger(id) || id < 0 || id >= tokenizer.vocabSize)
  if (unknown !== undefined) throw rejection(`Token id ${unknown} is out of vocabulary`, param)
}
