import type { EmbeddedModel } from './embedded-model.ts'

const SENTENCE =
  'The server reads a request, asks the engine for tokens, and writes them down before it answers. '

/** Ids of a text of exactly `length` tokens; the last one ends the turn. */
export function cannedCompletion({ tokenizer, eosTokenId }: EmbeddedModel, length: number): number[] {
  const sentence = tokenizer.encode(SENTENCE)
  const text = Array.from({ length: length - 1 }, (_, i) => sentence[i % sentence.length]!)
  return [...text, eosTokenId]
}
