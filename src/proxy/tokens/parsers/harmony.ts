/**
 * gpt-oss's harmony format: a completion consists of messages, each of which is a header, `<|message|>`, and a body.
 * The channel in the header distinguishes reasoning (`analysis`) from content (`final`, `commentary`). A message with a
 * recipient is a tool call: `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>`.
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
  getMissingHeader: getHeaderRest,
}

const CHANNELS = ['final', 'analysis', 'commentary']

/**
 * Returns the missing end of a truncated header; empty if the completion was not truncated in a header. If the channel
 * is missing, it is `final`. A completion without tokens is not truncated in a header, because prompts end with
 * `<|start|>assistant`.
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
      // A truncated header is omitted from the output. Text that is no header is content.
      messages.begin('content')
      if (!header.trimStart().startsWith('<|')) messages.show(header)
      return
    }
    opening = yield* readBody(reader, header, messages, (tools?.length ?? 0) > 0)
  }
}

/**
 * Reads the body of a message.
 * @returns the marker that ended it, if it begins the next header; else an empty string
 */
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
    messages.addCall(name, text, header)
  }
  return end === '<|start|>' || end === '<|channel|>' ? end : ''
}

/** The output to which the messages of a channel belong. */
type ChannelKind = 'content' | 'reasoning'

/** A writer of the output that joins the texts of messages of the same kind with newlines. */
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

  /** Adds a tool call. A body that is not a JSON object is content. */
  addCall(name: string, body: string, header: string): void {
    const written = body.trim()
    const scanner = new JsonScanner()
    const end = scanner.read(written, 0)
    if (written.startsWith('{') && scanner.isComplete && end === written.length) {
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
