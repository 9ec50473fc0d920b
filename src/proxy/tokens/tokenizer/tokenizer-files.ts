/** Hugging Face's files of a tokenizer, `tokenizer.json` and `tokenizer_config.json`, as far as they are read here. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { ProxyError } from '../../../base/errors.ts'
import type { AddedToken } from './added-tokens.ts'
import { readModelJson } from './model-file.ts'
import type { DecoderConfig } from './token-pieces.ts'

/** Parsed. */
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

/** A special token as the config writes it: bare, with its flags, or not there. */
export type SpecialTokenConfig = string | { content: string } | null | undefined

/** @throws ProxyError `config_invalid` if there is no `tokenizer.json`, or if a file is broken */
export function readTokenizerFiles(directory: string): TokenizerFiles {
  return withConfig(directory, readTokenizerJson(directory))
}

/**
 * The same without the model, which is nearly all of the file (0.3 s and 100 MB to parse), where the file's order lets
 * it be left out. What is wrong with the model is for those to find who read it.
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

/** As the library that writes these files spaces it. */
const MODEL_KEY = '"model":'

/**
 * What stands before the model, which that library writes last. These characters are a key wherever they are, as
 * quotation marks in texts bear a backslash; and it is the file's own key if all before it is an object with that key
 * once closed.
 * @returns undefined: the file has another order, and is to be read whole
 */
function readBeforeModel(directory: string): TokenizerJson | undefined {
  try {
    const bytes = readFileSync(join(directory, 'tokenizer.json'))
    const end = bytes.indexOf(MODEL_KEY)
    if (end === -1) return undefined
    const before = JSON.parse(`${bytes.toString('utf8', 0, end)}${MODEL_KEY}null}`) as TokenizerJson
    const isWhole = ['added_tokens', 'decoder', 'model'].every((key) => key in before)
    return isWhole ? { ...before, model: undefined } : undefined
  } catch {
    // Whoever reads it whole says what is wrong.
    return undefined
  }
}
