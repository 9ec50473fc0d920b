/**
 * Reads a tokenizer that Mistral publishes as `tekken.json`. Special tokens have the first ids, followed by as many of
 * the listed tokens as fit into the vocabulary (mistral-common's `tekken.py`).
 */
import { join } from 'node:path'
import type { AddedToken } from './added-tokens.ts'
import { type BytePairTokenizer, createInvalidFileError } from './byte-pair-tokenizer.ts'
import { readModelJson } from './model-file.ts'

/** The fields of `tekken.json` that are used here. */
interface TekkenJson {
  config: {
    pattern: string
    default_vocab_size: number
    default_num_special_tokens: number
    version: string
  }
  vocab: { rank: number; token_bytes: string }[]
  special_tokens?: { rank: number; token_str: string }[] | null
  /** The settings that prompts state, from version 15 on. */
  model_settings_builder?: {
    reasoning_effort?: { values: string[]; default?: string | null } | null
  } | null
}

/** The special tokens, by id, of files that list none, which is allowed up to version 7. */
const FIRST_SPECIAL_TOKENS = [
  ...['<unk>', '<s>', '</s>', '[INST]', '[/INST]', '[AVAILABLE_TOOLS]', '[/AVAILABLE_TOOLS]'],
  ...['[TOOL_RESULTS]', '[/TOOL_RESULTS]', '[TOOL_CALLS]', '[IMG]', '<pad>', '[IMG_BREAK]', '[IMG_END]'],
  ...['[PREFIX]', '[MIDDLE]', '[SUFFIX]', '[SYSTEM_PROMPT]', '[/SYSTEM_PROMPT]', '[TOOL_CONTENT]'],
]
const LAST_UNLISTED_VERSION = 7

/**
 * The fields of `tokenizer_config.json` that chat templates and decoding use. They are the same for all tekken files.
 */
export const TEKKEN_CONFIG = { bos_token: '<s>', eos_token: '</s>', unk_token: '<unk>', pad_token: '<pad>' }

/**
 * Reads a tokenizer.
 * @param directory contains `tekken.json`
 * @throws ProxyError `config_invalid` if the file does not have the form of Mistral's files
 */
export function readTekken(directory: string): BytePairTokenizer {
  const path = join(directory, 'tekken.json')
  const { config, vocab, special_tokens: listed } = readModelJson<Partial<TekkenJson>>(path) ?? {}
  const { pattern, default_vocab_size: size, default_num_special_tokens: count, version } = config ?? {}
  if (typeof pattern !== 'string' || !isCount(size) || !isCount(count) || !Array.isArray(vocab))
    throw createInvalidFileError(path, 'it has no pattern, sizes or vocabulary')
  const specialTokens = listed?.map(({ rank, token_str }) => ({ id: rank, content: token_str }))
  if (!specialTokens && !(Number(/^v(\d+)$/.exec(version ?? '')?.[1]) <= LAST_UNLISTED_VERSION))
    throw createInvalidFileError(path, `it lists no special tokens, which version ${version} requires`)
  const used = size - count
  if (used < 256 || used > vocab.length)
    throw createInvalidFileError(path, `it lists ${vocab.length} of ${used} tokens`)
  return {
    tokens: vocab.slice(0, used).map(({ rank, token_bytes }, index) => {
      if (rank !== index) throw createInvalidFileError(path, 'its tokens are not in the order of their ranks')
      return Buffer.from(token_bytes, 'base64').toString('latin1')
    }),
    firstId: count,
    pattern,
    addedTokens: fillSpecialTokens(
      specialTokens ?? FIRST_SPECIAL_TOKENS.map((content, id) => ({ id, content })),
      count,
      path,
    ),
  }
}

/** The properties of a tekken file that determine the rules for prompts. */
export interface TekkenRules {
  version: number
  /** Whether the tokenizer has tokens for reasoning. */
  hasThinking: boolean
  /** The reasoning efforts that a prompt may state; empty if prompts state no effort. */
  efforts: readonly string[]
  defaultEffort: string | undefined
}

/** The special tokens that prompts require, by the version that introduced them. */
const PROMPT_TOKENS: Readonly<Record<number, readonly string[]>> = {
  3: [
    ...['<s>', '</s>', '[INST]', '[/INST]', '[AVAILABLE_TOOLS]', '[/AVAILABLE_TOOLS]'],
    ...['[TOOL_RESULTS]', '[/TOOL_RESULTS]', '[TOOL_CALLS]'],
  ],
  7: ['[SYSTEM_PROMPT]', '[/SYSTEM_PROMPT]', '[TOOL_CONTENT]'],
  11: ['[ARGS]', '[CALL_ID]'],
  13: [],
  15: ['[MODEL_SETTINGS]', '[/MODEL_SETTINGS]'],
}

/**
 * Reads the properties that determine the rules for prompts.
 * @param directory contains `tekken.json`
 * @throws ProxyError `config_invalid` if the rules of the file's version are unknown, or a required token is missing
 */
export function readTekkenRules(directory: string): TekkenRules {
  const path = join(directory, 'tekken.json')
  const { config, special_tokens: listed, model_settings_builder } = readModelJson<TekkenJson>(path)!
  const version = Number(/^v(\d+)$/.exec(config.version)?.[1])
  if (PROMPT_TOKENS[version] === undefined) {
    const reason = `the prompts of version ${config.version} are unknown; add a chat template to the folder`
    throw createInvalidFileError(path, reason)
  }
  const tokens = new Set(listed?.map(({ token_str }) => token_str) ?? FIRST_SPECIAL_TOKENS)
  const needed = Object.entries(PROMPT_TOKENS).filter(([introduced]) => Number(introduced) <= version)
  const missing = needed.flatMap(([, names]) => names).find((name) => !tokens.has(name))
  if (missing !== undefined) throw createInvalidFileError(path, `it has no token ${missing}`)
  const effort = model_settings_builder?.reasoning_effort
  return {
    version,
    hasThinking: version >= 13 && tokens.has('[THINK]') && tokens.has('[/THINK]'),
    efforts: effort?.values ?? [],
    defaultEffort: effort?.default ?? undefined,
  }
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0
}

/** Returns `count` special tokens: the listed ones, followed by placeholders for unused ids. */
function fillSpecialTokens(listed: AddedToken[], count: number, path: string): AddedToken[] {
  if (listed.length > count || listed.some(({ id }, index) => id !== index))
    throw createInvalidFileError(path, 'its special tokens are not in the order of their ids')
  return Array.from({ length: count }, (_, id) => ({
    ...(listed[id] ?? { id, content: `<SPECIAL_${id}>` }),
    special: true,
  }))
}
