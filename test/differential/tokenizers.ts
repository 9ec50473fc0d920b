/**
 * Compares tokenizers in their authors' formats with the libraries that read those files: `tiktoken.model` with the
 * code of Kimi K2 against tiktoken, `tekken.json` against mistral-common. One text with other ids fails the run.
 *
 * No package registry has the vocabulary of Kimi's files, so gpt-oss's replaces it.
 */
import { execFileSync } from 'node:child_process'
import { copyFileSync, globSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { ContentCache } from '../../src/proxy/tokens/tokenizer/content-cache.ts'
import { openRustEncoder, type TextEncoder } from '../../src/proxy/tokens/tokenizer/encoder.ts'
import { loadFastTokenizer, openFastEncoder } from '../../src/proxy/tokens/tokenizer/fast-encoder.ts'
import {
  openTokenizerDirectory,
  verifyConversion,
} from '../../src/proxy/tokens/tokenizer/published-tokenizer.ts'
import { mayCutAtSpaces } from '../../src/proxy/tokens/tokenizer/safe-cuts.ts'
import { loadTokenizer, type Tokenizer } from '../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { readTokenizerFiles } from '../../src/proxy/tokens/tokenizer/tokenizer-files.ts'
import { createKimiConfigFiles } from '../helpers/kimi-files.ts'
import { IS_FULL } from '../helpers/tier.ts'
import { createRandom } from './conversations.ts'

interface CompareOptions {
  /** The Python environment with tiktoken and mistral-common. */
  python: string
  /** The file with the vocabulary of gpt-oss in the format of tiktoken. */
  vocabulary: string
  texts: number
  seed: number
  /** A folder with a `tiktoken.model` or a `tekken.json` to compare in place of the installed ones. */
  folder?: string | undefined
}

/** @returns the number of texts with other ids */
export async function compareTokenizers(options: CompareOptions): Promise<number> {
  const folder = mkdtempSync(join(tmpdir(), 'tokenizers-'))
  try {
    const published = options.folder === undefined ? writeFolders(folder, options) : [options.folder]
    let wrong = 0
    for (const each of published) wrong += await compareFolder(each, options)
    return wrong
  } finally {
    rmSync(folder, { recursive: true })
  }
}

function writeFolders(folder: string, { python, vocabulary }: CompareOptions): string[] {
  const kimi = join(folder, 'kimi')
  mkdirSync(kimi)
  copyFileSync(vocabulary, join(kimi, 'tiktoken.model'))
  const size = readFileSync(vocabulary, 'utf8').trimEnd().split('\n').length
  for (const [name, text] of Object.entries(createKimiConfigFiles(size)))
    writeFileSync(join(kimi, name), text)
  const packages = join(dirname(python), '../lib/python*/site-packages/mistral_common/data/tekken_*.json')
  const tekken = globSync(packages).map((file) => {
    const target = join(folder, file.split('/').at(-1)!.replace('.json', ''))
    mkdirSync(target)
    copyFileSync(file, join(target, 'tekken.json'))
    return target
  })
  if (tekken.length === 0) throw new Error(`mistral-common has no ${packages}`)
  return [kimi, ...tekken]
}

async function compareFolder(
  folder: string,
  { python, texts: count, seed }: CompareOptions,
): Promise<number> {
  const directory = openTokenizerDirectory(folder)
  const rust = (await openRustEncoder(directory))!
  const tokenizer = loadTokenizer(directory)
  await verifyConversion(tokenizer, rust)
  const fast = await openFastEncoder(loadFastTokenizer(directory), rust, [...tokenizer.addedTokens.keys()])
  const random = createRandom(seed)
  const texts = [
    ...generateCharacters(),
    ...Array.from({ length: count }, () => createHostileText(tokenizer, random)),
  ]
  const expected = queryOracle(python, folder, texts)
  let wrong = 0
  for (const [index, text] of texts.entries()) {
    const ids = Array.from(await (fast ?? rust).encode(text))
    const isEqual = ids.join() === expected[index]!.join() && tokenizer.decode(ids) === text
    if (isEqual) continue
    wrong += 1
    if (wrong <= 5) console.log(JSON.stringify({ text, ids, expected: expected[index] }))
  }
  wrong += Number(!(await isCutSafely(directory, texts.join(' word\n'), rust)))
  console.log(
    `tokenizer ${folder.split('/').at(-1)} (${(fast ?? rust).kind}): ${texts.length} texts, ${wrong} differ`,
  )
  await (fast ?? rust).close()
  return wrong
}

/** Returns whether a long text has the same ids when it is encoded in parts. */
async function isCutSafely(directory: string, text: string, rust: TextEncoder): Promise<boolean> {
  const { tokenizerJson } = readTokenizerFiles(directory)
  const cutsAtSpaces = mayCutAtSpaces(tokenizerJson)
  const encode = (part: string) => rust.encode(part)
  const cache = new ContentCache(encode, tokenizerJson.added_tokens ?? [], { cutsAtSpaces })
  const [inParts, complete] = [await cache.encode(text), Array.from(await rust.encode(text))]
  return cutsAtSpaces && inParts.join() === complete.join()
}

function queryOracle(python: string, folder: string, texts: readonly string[]): number[][] {
  const output = execFileSync(python, [join(import.meta.dirname, 'tokenizer_oracle.py'), folder], {
    input: JSON.stringify(texts),
    maxBuffer: 2 ** 30,
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  return JSON.parse(output.toString()) as number[][]
}

/**
 * Yields every character of the assigned planes, between others that reveal its class: a letter and white space, or a
 * digit, Han and white space; without FULL=1 between one of the two kinds.
 */
function* generateCharacters(): Generator<string> {
  for (const plane of [0, 1, 2, 3, 14]) {
    for (let from = plane * 0x10000; from < (plane + 1) * 0x10000; from += 0x400) {
      if (from >= 0xd800 && from < 0xe000) continue
      const characters = Array.from({ length: 0x400 }, (_, index) => String.fromCodePoint(from + index))
      const contexts = ['a ', '7漢A\n']
      for (const after of IS_FULL ? contexts : [contexts[(from / 0x400) % 2]!])
        yield characters.map((character) => `${character}${after}`).join('')
    }
  }
}

const CHUNKS = [
  ..."'s 'S 'ſ 'll 'LL 'Ll 're 've 'm 'd 't ' '' \" ’s".split(' '),
  ...['漢字', 'かな', 'カナ', '한글', '〇々〆', '⺀⼀', '𠀀𪛖', '㐂', '豈', '中a文', 'ａｂｃ', '，。'],
  ...[
    'A',
    'ABC',
    'Abc',
    'aBC',
    'ǅ',
    'ʰ',
    'ª',
    'ß',
    'ẞ',
    'İ',
    'é',
    'e\u0301',
    '\u0301',
    '\u20dd',
    '\u200d',
    '\ufe0f',
  ],
  ...['0', '12', '123', '1234', '٣٤٥', 'Ⅷ', '½', '²³', '①', '𝟙𝟚'],
  ...[
    ' ',
    '  ',
    '   ',
    '\t',
    '\n',
    '\n\n',
    '\r\n',
    '\r',
    '\u00a0',
    '\u1680',
    '\u2003',
    '\u2028',
    '\u3000',
    '\u0085',
    '\u000b',
  ],
  ...[
    '\u200b',
    '\ufeff',
    '\u0000',
    '\u001c',
    '\u00ad',
    '\ufffd',
    '\ue000',
    '\u{10ffff}',
    '\u0378',
    '\u{1fae9}',
  ],
  ...[
    '/',
    '//',
    '/*',
    '...',
    '!?',
    '({[',
    '<|',
    '|>',
    '[',
    ']',
    '</',
    '_',
    '__init__',
    '#',
    '€',
    '🙂',
    '👩‍👩‍👧',
    '🇩🇪',
  ],
]

function createHostileText(tokenizer: Tokenizer, random: () => number): string {
  const upTo = (limit: number) => Math.floor(random() * limit)
  const added = [...tokenizer.addedTokens.keys()]
  const kinds = [
    () => CHUNKS[upTo(CHUNKS.length)]!,
    () => CHUNKS[upTo(CHUNKS.length)]!.repeat(1 + upTo(3) * upTo(40)),
    () => tokenizer.decode([upTo(tokenizer.vocabSize)]).replaceAll('\ufffd', ''),
    () => String.fromCodePoint(createCodePoint(random)),
    () => Array.from({ length: 1 + upTo(30) }, () => String.fromCharCode(0x61 + upTo(26))).join(''),
    () => Array.from({ length: 1 + upTo(12) }, () => String.fromCharCode(0x80 + upTo(0x700))).join(''),
    () => (random() < 0.3 ? added[upTo(added.length)]! : added[upTo(added.length)]!.slice(upTo(3))),
  ]
  return Array.from({ length: 1 + upTo(24) }, () => kinds[upTo(kinds.length)]!())
    .join('')
    .toWellFormed()
}

function createCodePoint(random: () => number): number {
  const planes = [0x80, 0x800, 0x3000, 0x10000, 0x20000, 0x40000, 0x110000]
  const point = Math.floor(random() * planes[Math.floor(random() * planes.length)]!)
  return point >= 0xd800 && point < 0xe000 ? 0x20 : point
}
