import type { ChatBody } from '../../protocol/canonical/request.ts'
import type { EngineClient } from '../../proxy/engines/port/engine-client.ts'

/** What the model thinks of a token of a prompt. */
interface PromptToken {
  readonly logprob: number
  /** Among all tokens, from 1. */
  readonly rank: number
  readonly top: readonly { id: number; logprob: number }[]
}

/** An engine that can be served over HTTP: it also has its tokenizer at hand. */
export interface ServedEngine extends EngineClient {
  /** The one model's name. */
  readonly model: string
  /** Tokens of prompt and completion together. */
  readonly contextLength: number
  weightVersion: string | undefined
  tokenizeChat(body: ChatBody): Promise<number[]>
  /** The given tokens from one place on, each after all before it, with so many of the most probable ones. */
  rankTokens(ids: readonly number[], from: number, count: number): PromptToken[]
  tokenizeText(text: string): Promise<number[]>
  detokenize(ids: readonly number[]): string
  tokenStrings(ids: readonly number[]): string[]
}
