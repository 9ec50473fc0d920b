/**
 * Finds a model's tokenizer in its folder: a `tokenizer.json`, or a file in another format, which is converted when it
 * is first used. The converted files are cached in a subfolder of the temporary directory, whose name is a digest of
 * the sources.
 */
import { createHash } from 'node:crypto'
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { ProxyError } from '../../../base/errors.ts'
import { unpackGenerated } from '../../../base/unpack.ts'
import { type BytePairTokenizer, createTokenizerJson } from './byte-pair-tokenizer.ts'
import type { TextEncoder } from './encoder.ts'
import { readModelJson } from './model-file.ts'
import { createProofTexts } from './proof-texts.ts'
import { readTekken, TEKKEN_CONFIG } from './tekken.ts'
import { readTiktokenModel } from './tiktoken-model.ts'
import type { Tokenizer } from './tokenizer.ts'
import type { TokenizerConfig } from './tokenizer-files.ts'

/** The version of the conversion, to be increased if the result for the same sources changes. */
const CONVERSION = 1

/** A format of tokenizers that is converted. */
interface TokenizerFormat {
  /** The name of the file. */
  file: string
  /** Reads the tokenizer. @throws ProxyError `config_invalid` */
  read(directory: string): BytePairTokenizer
  /** The default fields of `tokenizer_config.json` for models with this format. */
  config: TokenizerConfig
}

/** The formats, the preferred one first. */
const FORMATS: readonly TokenizerFormat[] = [
  { file: 'tiktoken.model', read: readTiktokenModel, config: {} },
  { file: 'tekken.json', read: readTekken, config: TEKKEN_CONFIG },
]

/** The names of the files that may contain a model's tokenizer, the preferred one first. */
export const TOKENIZER_FILES: readonly string[] = ['tokenizer.json', ...FORMATS.map(({ file }) => file)]

/**
 * Returns a directory with `tokenizer.json` and `tokenizer_config.json`: the model's own, or one with the converted
 * files. The first conversion blocks for some seconds.
 * @param directory contains one of {@link TOKENIZER_FILES}
 * @throws ProxyError `config_invalid` if the tokenizer cannot be converted, `start_failed` if the temporary directory
 *   cannot be used
 */
export function openTokenizerDirectory(directory: string): string {
  const file = TOKENIZER_FILES.find((name) => statSync(join(directory, name), { throwIfNoEntry: false }))
  const format = FORMATS.find((candidate) => candidate.file === file)
  if (format === undefined) return directory
  return unpackGenerated(digestSources(directory, format.file), () => convert(directory, format))
}

/** Returns a digest of the conversion's version and of all files that affect its result. */
function digestSources(directory: string, file: string): string {
  const hash = createHash('sha256').update(`tokenizer ${CONVERSION}\n`)
  const code = readdirSync(directory).filter((name) => /^tokenization_\w+\.py$/.test(name))
  for (const name of [file, 'tokenizer_config.json', ...code.sort()]) {
    const path = join(directory, name)
    if (statSync(path, { throwIfNoEntry: false }) === undefined) continue
    const content = readFileSync(path)
    hash.update(`${name} ${content.length}\n`).update(content)
  }
  return hash.digest('hex').slice(0, 32)
}

function convert(directory: string, { file, read, config }: TokenizerFormat) {
  const own = readModelJson<TokenizerConfig>(join(directory, 'tokenizer_config.json'))
  const made = {
    'tokenizer.json': createTokenizerJson(read(directory), join(directory, file)),
    'tokenizer_config.json': { ...config, ...own },
  }
  return Object.entries(made).map(([name, json]) => ({ name, content: Buffer.from(JSON.stringify(json)) }))
}

/**
 * Verifies that encoding and decoding with a converted tokenizer preserves texts. This detects a regular expression
 * that the library interprets differently, and missing tokens.
 * @throws ProxyError `config_invalid` if a text changes or cannot be encoded
 */
export async function verifyConversion(tokenizer: Tokenizer, encoder: TextEncoder): Promise<void> {
  for (const text of createProofTexts([...tokenizer.addedTokens.keys()])) {
    const ids = await encoder.encode(text).catch((error: unknown) => error as Error)
    if (!(ids instanceof Error) && tokenizer.decode(Array.from(ids)) === text.toWellFormed()) continue
    const reason = ids instanceof Error ? `: ${ids.message}` : ''
    throw new ProxyError(
      'config_invalid',
      `the ${encoder.kind} tokenizer cannot use this model's converted tokenizer${reason}; ` +
        'convert it to a tokenizer.json with transformers, and put that into the folder',
    )
  }
}
