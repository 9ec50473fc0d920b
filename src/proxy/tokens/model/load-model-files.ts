/** Finds a model's files, wherever they are, and reads what the configs say about its limits. */
import { statSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { ProxyError } from '../../../base/errors.ts'
import { readModelJson } from '../tokenizer/model-file.ts'
import { fetchModelDirectory, type HubEnvironment } from './hub.ts'

export interface ModelFiles {
  /** Holds `tokenizer.json` and what else there is. */
  directory: string
  /** In tokens, where `config.json` tells. */
  contextLength: number | undefined
  /** How many tokens the model has logits for, where `config.json` tells; often more than the tokenizer has. */
  vocabularySize: number | undefined
  /**
   * Ids that end a turn, as `generation_config.json` or else `config.json` has them; often more than the tokenizer's
   * own.
   */
  eosTokenIds: number[]
  /** Files that a cache in part lacks, where the hub could not be asked whether the model has them. */
  unlisted?: string[]
}

/**
 * @param source a directory, a `tokenizer.json`, or a model id of the Hugging Face hub
 * @throws ProxyError `config_invalid` if there is nothing usable there, `start_failed` if the hub cannot be reached
 */
export async function loadModelFiles(
  source: string,
  { environment = process.env }: { environment?: HubEnvironment } = {},
): Promise<ModelFiles> {
  const local = localDirectory(source)
  const { directory, unlisted } =
    local === undefined
      ? await fetchModelDirectory(modelId(source), environment)
      : { directory: local, unlisted: [] }
  const config = readModelJson<ModelConfig>(join(directory, 'config.json')) ?? {}
  const generation = readModelJson<ModelConfig>(join(directory, 'generation_config.json')) ?? {}
  return {
    directory,
    contextLength:
      config.max_position_embeddings ?? config.text_config?.max_position_embeddings ?? config.n_positions,
    vocabularySize: config.vocab_size ?? config.text_config?.vocab_size,
    eosTokenIds: [
      generation.eos_token_id ?? config.eos_token_id ?? config.text_config?.eos_token_id ?? [],
    ].flat(),
    ...(unlisted.length > 0 && { unlisted }),
  }
}

/** undefined if there is nothing of that name on this machine. */
function localDirectory(source: string): string | undefined {
  const stats = statSync(source, { throwIfNoEntry: false })
  if (stats === undefined) return undefined
  const path = stats.isDirectory() ? join(source, 'tokenizer.json') : source
  if (basename(path) !== 'tokenizer.json' || statSync(path, { throwIfNoEntry: false }) === undefined) {
    throw new ProxyError(
      'config_invalid',
      `${source} is neither a tokenizer.json nor a directory that holds one`,
    )
  }
  return dirname(path)
}

/** Anything else would end up in a URL and in a path. */
function modelId(source: string): string {
  if (/^\w[\w.-]*(\/\w[\w.-]*)?$/.test(source) && !source.includes('..') && !source.includes('--'))
    return source
  throw new ProxyError('config_invalid', `${source} is not a file, a directory or a model id`)
}

/** `config.json` and `generation_config.json`, as far as they are read here; multimodal models nest the former. */
interface ModelConfig {
  max_position_embeddings?: number
  n_positions?: number
  vocab_size?: number
  eos_token_id?: number | number[] | null
  text_config?: ModelConfig
}
