/**
 * Reads a tokenizer that is published as `tiktoken.model` (Kimi K2 to K2.6): each line of the file contains a token in
 * base64 and its rank. The regular expression that splits texts and the number of reserved tokens are constants of the
 * Python file that `auto_map` of `tokenizer_config.json` names. They are extracted from its text; the code is not
 * executed. The names of special tokens are in `tokenizer_config.json`.
 */
import { join } from 'node:path'
import type { AddedToken } from './added-tokens.ts'
import { type BytePairTokenizer, createInvalidFileError } from './byte-pair-tokenizer.ts'
import { readModelFile, readModelJson } from './model-file.ts'

/** The fields of `tokenizer_config.json` that are used here. */
interface KimiConfig {
  auto_map?: { AutoTokenizer?: unknown }
  added_tokens_decoder?: Record<string, TokenConfig>
}

/** An added token in `tokenizer_config.json`. */
interface TokenConfig {
  content: string
  special?: boolean
  lstrip?: boolean
  rstrip?: boolean
  single_word?: boolean
}

/** The Python expression for the name of a reserved token. */
const RESERVED_NAME = 'f"<|reserved_token_{i}|>"'

/**
 * Reads a tokenizer.
 * @param directory contains `tiktoken.model`, `tokenizer_config.json` and the Python file
 * @throws ProxyError `config_invalid` if a file is missing, or does not have the form of Kimi's files
 */
export function readTiktokenModel(directory: string): BytePairTokenizer {
  const path = join(directory, 'tiktoken.model')
  const config = readModelJson<KimiConfig>(join(directory, 'tokenizer_config.json')) ?? {}
  const tokens = parseRanks(readModelFile(path) ?? '', path)
  const codePath = join(directory, findTokenizerCodeFile(config, path))
  const code = readModelFile(codePath)
  if (code === undefined)
    throw createInvalidFileError(path, `its expression is in ${codePath}, which does not exist`)
  const reserved = /^\s*num_reserved_special_tokens\s*=\s*(\d+)\s*$/m.exec(code)?.[1]
  const pattern = parsePattern(code)
  if (reserved === undefined || pattern === undefined || !code.includes(RESERVED_NAME))
    throw createInvalidFileError(path, `${codePath} does not have the form of Kimi's tokenization_kimi.py`)
  return {
    tokens,
    firstId: 0,
    pattern,
    addedTokens: listAddedTokens(config, tokens.length, Number(reserved), path),
  }
}

/** Returns the Python file that defines the tokenizer. */
function findTokenizerCodeFile({ auto_map }: KimiConfig, path: string): string {
  const [name] = [auto_map?.AutoTokenizer].flat()
  const module = typeof name === 'string' ? /^(\w+)\.\w+$/.exec(name)?.[1] : undefined
  if (module === undefined)
    throw createInvalidFileError(
      path,
      'auto_map of tokenizer_config.json names no Python file of this folder',
    )
  return `${module}.py`
}

/** Returns the tokens by rank, each with one character from U+0000 to U+00FF per byte. */
function parseRanks(text: string, path: string): string[] {
  const tokens: string[] = []
  let lines = 0
  for (const line of text.split('\n')) {
    if (line === '') continue
    const [, token, rank] = /^([A-Za-z0-9+/]+={0,2}) (\d+)\r?$/.exec(line) ?? []
    if (token === undefined) throw createInvalidFileError(path, 'a line is not a token in base64 and a rank')
    tokens[Number(rank)] = Buffer.from(token, 'base64').toString('latin1')
    lines += 1
  }
  if (lines === 0 || lines !== tokens.length || tokens.includes(undefined as never))
    throw createInvalidFileError(path, 'its ranks are not the numbers from 0')
  return tokens
}

/** Returns the value of `pat_str = "|".join([r"""…""", …])`; undefined if the code has another form. */
function parsePattern(code: string): string | undefined {
  const begin = /\bpat_str\s*=\s*(["'])\|\1\.join\(\s*\[/.exec(code)
  if (begin === null) return undefined
  const item = /\s*r("""|'''|"|')((?:(?!\1)[^\\]|\\[\s\S])*?)\1\s*(,|(?=\]))/y
  item.lastIndex = begin.index + begin[0].length
  const parts: string[] = []
  for (let match = item.exec(code), end = 0; ; match = item.exec(code)) {
    if (match === null)
      return parts.length > 0 && /^\s*\]\s*\)/.test(code.slice(end)) ? parts.join('|') : undefined
    parts.push(match[2]!)
    end = item.lastIndex
  }
}

/** Returns the tokens that follow the vocabulary: those that the config names, and reserved ones for all other ids. */
function listAddedTokens(config: KimiConfig, firstId: number, count: number, path: string): AddedToken[] {
  const named = new Map(
    Object.entries(config.added_tokens_decoder ?? {}).map(([id, token]) => [Number(id), token]),
  )
  for (const [id, { content, lstrip, rstrip, single_word }] of named) {
    if (id < firstId || id >= firstId + count)
      throw createInvalidFileError(
        path,
        `the special token ${content} has the id ${id}, which is not after its vocabulary`,
      )
    if (lstrip || rstrip || single_word)
      throw createInvalidFileError(path, `the special token ${content} has lstrip, rstrip or single_word`)
  }
  return Array.from({ length: count }, (_, index) => {
    const id = firstId + index
    const { content = `<|reserved_token_${id}|>`, special = !named.has(id) } = named.get(id) ?? {}
    return { id, content, special }
  })
}
