/**
 * Finds a model's tokenizer in its folder: a `tokenizer.json`, or what the authors of some models publish in its place,
 * which is converted when it is first used. The converted file is kept in the temporary directory, named by a digest of
 * everything that it was made of.
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

/** The version of the conversion. It is increased if another file results from the same input. */
const CONVERSION = 1

interface TokenizerFormat {
  file: string
  read(directory: string): BytePairTokenizer
  /** The fields of `tokenizer_config.json` that a model of this format has, whatever the file says or lacks. */
  config: TokenizerConfig
}

/** The formats that are converted. If a folder has several files, the first is used. */
const FORMATS: readonly TokenizerFormat[] = [
  { file: 'tiktoken.model', read: readTiktokenModel, config: {} },
  { file: 'tekken.json', read: readTekken, config: TEKKEN_CONFIG },
]

/** The files that contain a tokenizer, one of which a model has, the preferred one first. */
export const TOKENIZER_FILES: readonly string[] = ['tokenizer.json', ...FORMATS.map(({ file }) => file)]

/**
 * Returns a directory with `tokenizer.json` and `tokenizer_config.json`: the model's own, or that of the converted
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

/** Returns a digest of all files from which a tokenizer is made. */
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
 * Verifies that a converted tokenizer returns every text as it was. This detects an expression that this machine's
 * library reads otherwise, and tokens that were lost.
 * @throws ProxyError `config_invalid` if it does not
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
