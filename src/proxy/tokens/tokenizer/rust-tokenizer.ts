/** Opens Hugging Face's tokenizer in Rust, of the npm package `tokenizers`, on the event loop or on a thread. */

/** The methods of the library's tokenizer that are used. `encode` runs on one of libuv's threads. */
export interface RustTokenizer {
  /** `getIds` creates an array on the calling thread, in 50 ms for a million ids. */
  encode(text: string, pair: null, options: { addSpecialTokens: boolean }): Promise<{ getIds(): number[] }>
  idToToken(id: number): string | null
  tokenToId(token: string): number | null
}

/** A `tokenizer.json`: its path or its text. */
export type TokenizerSource = { file: string } | { json: string }

/**
 * Opens a tokenizer. Blocks for up to a second.
 * @returns undefined if the library has no binary for this machine
 * @throws Error of the library for an invalid `tokenizer.json`
 */
export async function openRustTokenizer(source: TokenizerSource): Promise<RustTokenizer | undefined> {
  const library = await import('tokenizers').catch(() => undefined)
  if (library === undefined) return undefined
  const tokenizer =
    'file' in source ? library.Tokenizer.fromFile(source.file) : library.Tokenizer.fromString(source.json)
  // The file may enable truncation and padding, which transformers disables for prompts.
  tokenizer.disableTruncation()
  tokenizer.disablePadding()
  return tokenizer
}
