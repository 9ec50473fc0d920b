/** Reads Hugging Face's tokenizer files, `tokenizer.json` and `tokenizer_config.json`. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { ProxyError } from '../../../base/errors.ts'
import type { AddedToken } from './added-tokens.ts'
import { readModelJson } from './model-file.ts'
import type { DecoderConfig } from './token-pieces.ts'

/** The parsed files. */
export interface TokenizerFiles {
  tokenizerJson: TokenizerJson
  tokenizerConfig: TokenizerConfig
}

export interface TokenizerJson {
  added_tokens?: AddedToken[]
  model?: { vocab?: Record<string, number> | [token: string, score: number][] } | undefined
  decoder?: DecoderConfig | null
  [field: string]: unknown
}

export interface TokenizerConfig {
  eos_token?: SpecialTokenConfig
  chat_template?: string | { name: string; template: string }[]
  [field: string]: unknown
}

/** A special token in the config: a text, an object with flags, or absent. */
export type SpecialTokenConfig = string | { content: string } | null | undefined

/** Returns the text of a special token in either form of the config. */
export function getSpecialTokenText(token: SpecialTokenConfig): string | undefined {
  return typeof token === 'string' ? token : token?.content
}

/**
 * Reads and parses the files.
 * @throws ProxyError `config_invalid` if there is no `tokenizer.json`, or if a file is invalid
 */
export function readTokenizerFiles(directory: string): TokenizerFiles {
  return withConfig(directory, readTokenizerJson(directory))
}

/**
 * Reads the files without the model, which is nearly all of `tokenizer.json` (0.3 s and 100 MB to parse), if the order
 * of the file permits. Errors in the model are reported by the code that reads it.
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

/** The key as formatted by the library that writes these files. */
const MODEL_KEY = '"model":'

/**
 * Reads the part before the model, which that library writes last. The searched characters are always a key, because
 * quotation marks in texts are escaped; and it is a key of the outermost object if the text before it is an object with
 * that key once closed.
 * @returns undefined: the file has another order, and must be read completely
 */
function readBeforeModel(directory: string): TokenizerJson | undefined {
  try {
    const bytes = readFileSync(join(directory, 'tokenizer.json'))
    const end = bytes.indexOf(MODEL_KEY)
    if (end === -1) return undefined
    const before = JSON.parse(`${bytes.toString('utf8', 0, end)}${MODEL_KEY}null}`) as TokenizerJson
    const isComplete = ['added_tokens', 'decoder', 'model'].every((key) => key in before)
    return isComplete ? { ...before, model: undefined } : undefined
  } catch {
    // Reading the complete file reports the error.
    return undefined
  }
}
