/**
 * gpt-oss's harmony format: a completion is several messages, each a header, `<|message|>`, and a body. The header's
 * channel distinguishes reasoning (`analysis`) from content (`final`, `commentary`); a recipient makes it a tool call:
 * `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>`.
 * Sources: OpenAI's harmony guide (openai/harmony, `docs/format.md`); SGLang's `harmony_parser.py` and
 * `gpt_oss_detector.py`.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import { JsonScanner } from './json-scanner.ts'
import type { DeltaBuilder } from './output-delta.ts'
import { OutputParser, type OutputParserOptions, type ParserFamily } from './output-parser.ts'
import type { GrammarStep, TextReader } from './text-reader.ts'

const MESSAGE = '<|message|>'
const HEADER_END = new MarkerSet([MESSAGE])
/** The markers that end a body; the last two begin the next header. */
const BODY_ENDS = new MarkerSet(['<|end|>', '<|return|>', '<|call|>', '<|start|>', '<|channel|>'])

export const harmony: ParserFamily = {
  name: 'harmony',
  keepTokens: ['<|start|>', '<|channel|>', '<|constrain|>', MESSAGE, '<|end|>', '<|call|>', '<|return|>'],
  create: (options) => new OutputParser(readMessages, options),
  headerRest: getHeaderRest,
}

const CHANNELS = ['final', 'analysis', 'commentary']

/**
 * Returns the missing end of a truncated header. A header without a channel becomes one of `final`. After
 * `<|start|>assistant`, where prompts end, nothing is missing.
 */
function getHeaderRest(completion: string): string {
  const opened = completion.slice(
    Math.max(completion.lastIndexOf('<|start|>'), completion.lastIndexOf('<|channel|>'), 0),
  )
  const isHeader =
    /^<\|(?:start|channel)\|>/.test(opened) && !/<\|(?:message|end|call|return)\|>/.test(opened)
  if (!isHeader) return ''
  const role = /^<\|start\|>(.*)$/s.exec(opened)?.[1]
  if (role !== undefined) return `${role === '' ? 'assistant' : ''}<|channel|>${CHANNELS[0]}${MESSAGE}`
  const begun = opened.slice('<|channel|>'.length)
  const channel = CHANNELS.find((name) => name.startsWith(begun)) ?? begun
  return `${channel.slice(begun.length)}${MESSAGE}`
}

function* readMessages(
  reader: TextReader,
  delta: DeltaBuilder,
  { tools }: OutputParserOptions,
): GrammarStep<void> {
  const messages = new MessageJoiner(delta)
  let opening = ''
  for (;;) {
    const { text, marker } = yield* reader.upTo(HEADER_END)
    const header = opening + text
    if (marker === undefined) {
      // A truncated header is omitted; text without a header is content.
      messages.begin('content')
      if (!header.trimStart().startsWith('<|')) messages.show(header)
      return
    }
    opening = yield* readBody(reader, header, messages, (tools?.length ?? 0) > 0)
  }
}

/** Reads a body. @returns the marker that ended it, if that begins a header; else an empty string */
function* readBody(
  reader: TextReader,
  header: string,
  messages: MessageJoiner,
  hasTools: boolean,
): GrammarStep<string> {
  const name = hasTools ? parseRecipient(header) : undefined
  let end: string | undefined
  if (name === undefined) {
    messages.begin(/<\|channel\|>\s*analysis/.test(header) ? 'reasoning' : 'content')
    end = (yield* reader.upTo(BODY_ENDS, (text) => messages.show(text))).marker
  } else {
    const { text, marker } = yield* reader.upTo(BODY_ENDS)
    end = marker
    messages.call(name, text, header)
  }
  return end === '<|start|>' || end === '<|channel|>' ? end : ''
}

type ChannelKind = 'content' | 'reasoning'

/** Joins messages of the same kind with newlines. */
class MessageJoiner {
  readonly #delta: DeltaBuilder
  readonly #shown: Record<ChannelKind, boolean> = { content: false, reasoning: false }
  #kind: ChannelKind = 'content'
  #isFurther = false

  constructor(delta: DeltaBuilder) {
    this.#delta = delta
  }

  begin(kind: ChannelKind): void {
    this.#kind = kind
    this.#isFurther = this.#shown[kind]
  }

  show(text: string): void {
    if (text === '') return
    const shown = this.#isFurther ? `\n${text}` : text
    this.#isFurther = false
    this.#shown[this.#kind] = true
    if (this.#kind === 'content') this.#delta.addContent(shown)
    else this.#delta.addReasoning(shown)
  }

  /** Adds a message to a tool; one that is not a JSON object is content. */
  call(name: string, body: string, header: string): void {
    const written = body.trim()
    const scanner = new JsonScanner()
    const end = scanner.read(written, 0)
    if (written.startsWith('{') && scanner.isWhole && end === written.length) {
      this.#delta.addCalls([{ name, arguments: written }])
    } else {
      this.begin('content')
      this.show(header + MESSAGE + body)
    }
  }
}

function parseRecipient(header: string): string | undefined {
  return /\bto=(?:functions\.)?([\w.-]+)/.exec(header)?.[1]
}
