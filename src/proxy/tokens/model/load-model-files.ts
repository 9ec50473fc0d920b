/** Finds a model's files locally or on the Hugging Face hub, and reads the model's limits from its configs. */
import { existsSync, statSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { ProxyError } from '../../../base/errors.ts'
import { readModelJson } from '../tokenizer/model-file.ts'
import { TOKENIZER_FILES } from '../tokenizer/published-tokenizer.ts'
import { fetchModelDirectory, type HubEnvironment } from './hub.ts'

/** The location of a model's files, and the limits that they declare. */
export interface ModelFiles {
  /** The directory that contains the tokenizer and the model's other files. */
  directory: string
  /** The context length in tokens, if `config.json` declares it. */
  contextLength: number | undefined
  /**
   * The number of the model's logits, if `config.json` declares it. It is often larger than the number of the
   * tokenizer's tokens.
   */
  vocabularySize: number | undefined
  /**
   * The ids that end a turn, from `generation_config.json` or else `config.json`; often more ids than the tokenizer
   * declares.
   */
  eosTokenIds: number[]
  /**
   * The files that are missing from a partial cache, although the model may have them. Set if the hub could not be
   * reached.
   */
  unlisted?: string[]
}

/**
 * Finds the model's files and reads its limits.
 * @param source a directory, the tokenizer's file in it, or a model id of the Hugging Face hub
 * @throws ProxyError `config_invalid` if the source contains no usable tokenizer, `start_failed` if the hub cannot be
 *   reached
 */
export async function loadModelFiles(
  source: string,
  { environment = process.env }: { environment?: HubEnvironment } = {},
): Promise<ModelFiles> {
  const local = findLocalDirectory(source)
  const { directory, unlisted } =
    local === undefined
      ? await fetchModelDirectory(parseModelId(source), environment)
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

/** Returns the directory of a local source; undefined if there is no such path. */
function findLocalDirectory(source: string): string | undefined {
  const stats = statSync(source, { throwIfNoEntry: false })
  if (stats === undefined) return undefined
  const directory = stats.isDirectory() ? source : dirname(source)
  const files = stats.isDirectory() ? TOKENIZER_FILES : [basename(source)]
  const isTokenizer = (file: string) => TOKENIZER_FILES.includes(file) && existsSync(join(directory, file))
  if (files.some(isTokenizer)) return directory
  throw new ProxyError(
    'config_invalid',
    `${source} is neither a tokenizer (${TOKENIZER_FILES.join(', ')}) nor a directory that contains one`,
  )
}

/** Validates and returns a model id, because it becomes part of a URL and of a path. */
function parseModelId(source: string): string {
  if (/^\w[\w.-]*(\/\w[\w.-]*)?$/.test(source) && !source.includes('..') && !source.includes('--'))
    return source
  throw new ProxyError('config_invalid', `${source} is not a file, a directory or a model id`)
}

/**
 * The fields of `config.json`, some of which multimodal models nest, and of `generation_config.json` that are used
 * here.
 */
interface ModelConfig {
  max_position_embeddings?: number
  n_positions?: number
  vocab_size?: number
  eos_token_id?: number | number[] | null
  text_config?: ModelConfig
}
