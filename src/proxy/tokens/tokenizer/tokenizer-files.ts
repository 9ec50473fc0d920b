/** Reads Hugging Face's tokenizer files, `tokenizer.json` and `tokenizer_config.json`. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { ProxyError } from '../../../base/errors.ts'
import type { AddedToken } from './added-tokens.ts'
import { readModelJson } from './model-file.ts'
import type { DecoderConfig } from './token-pieces.ts'

/** The parsed files of a tokenizer. */
export interface TokenizerFiles {
  tokenizerJson: TokenizerJson
  tokenizerConfig: TokenizerConfig
}

/** The fields of `tokenizer.json` that are used here. */
export interface TokenizerJson {
  added_tokens?: AddedToken[]
  model?: { vocab?: Record<string, number> | [token: string, score: number][] } | undefined
  decoder?: DecoderConfig | null
  [field: string]: unknown
}

/** The fields of `tokenizer_config.json` that are used here. */
export interface TokenizerConfig {
  eos_token?: SpecialTokenConfig
  chat_template?: string | { name: string; template: string }[]
  [field: string]: unknown
}

/** A special token in `tokenizer_config.json`: its text, or an object with its text and flags. */
export type SpecialTokenConfig = string | { content: string } | null | undefined

/** Returns the text of a special token; undefined if the config does not declare it. */
export function getSpecialTokenText(token: SpecialTokenConfig): string | undefined {
  return typeof token === 'string' ? token : token?.content
}

/**
 * Reads and parses both files.
 * @throws ProxyError `config_invalid` if there is no `tokenizer.json`, or if a file is invalid
 */
export function readTokenizerFiles(directory: string): TokenizerFiles {
  return withConfig(directory, readTokenizerJson(directory))
}

/**
 * Reads both files without the field `model` if the order of fields permits it: the model is nearly all of
 * `tokenizer.json`, and parsing it takes 0.3 s and 100 MB. The code that reads the model reports errors in it.
 */
export function readTokenizerFilesWithoutModel(directory: string): TokenizerFiles {
  return withConfig(directory, readBeforeModel(directory) ?? readTokenizerJson(directory))
}

function withConfig(directory: string, tokenizerJson: TokenizerJson): TokenizerFiles {
  const path = join(directory, 'tokenizer_config.json')
  return { tokenizerJson, tokenizerConfig: readModelJson<TokenizerConfig>(path) ?? {} }
}

function readTokenizerJson(directory: string): TokenizerJson {
  const path = join(directory, 'tokenizer.json')
  const tokenizerJson = readModelJson<TokenizerJson>(path)
  if (tokenizerJson === undefined) throw new ProxyError('config_invalid', `there is no ${path}`)
  return tokenizerJson
}

/** The key of the model, as Hugging Face's library formats it. */
const MODEL_KEY = '"model":'

/**
 * Reads the fields before the model, which the library writes last. The characters of {@link MODEL_KEY} are always a
 * key, because quotation marks in strings are escaped. It is a key of the outermost object if appending `null}` to it
 * yields valid JSON.
 * @returns undefined if the file has another order and must be read completely
 */
function readBeforeModel(directory: string): TokenizerJson | undefined {
  try {
    const bytes = readFileSync(join(directory, 'tokenizer.json'))
    const end = bytes.indexOf(MODEL_KEY)
    if (end === -1) return undefined
    const before = JSON.parse(`${bytes.toString('utf8', 0, end)}${MODEL_KEY}null}`) as TokenizerJson
    const isComplete = ['added_tokens', 'post_processor', 'decoder', 'model'].every((key) => key in before)
    return isComplete ? { ...before, model: undefined } : undefined
  } catch {
    // Reading the complete file reports the error.
    return undefined
  }
}
