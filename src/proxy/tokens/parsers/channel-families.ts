/** The families that write a completion as several messages, each with a header that names its recipient. */
import { MarkerSet } from '../tokenizer/markers.ts'
import { createBlockGrammar } from './block-parser.ts'
import { readArguments } from './json-tool-calls.ts'
import type { DeltaBuilder } from './output-delta.ts'
import { OutputParser, type OutputParserOptions, type ParserFamily } from './output-parser.ts'
import { createInvokeTags, createTaggedSyntax } from './tagged-tool-calls.ts'
import { type GrammarStep, RunScanner, type TextReader } from './text-reader.ts'

const RECIPIENT_MARK = '>>>'
const RECIPIENT_MARKS = new MarkerSet([RECIPIENT_MARK])

/**
 * Functionary 3.2: `all\ntext>>>f\n{…}>>>g\n{…}`. The prompt ends with the first `>>>`. The marker begins a header only
 * if a tool's name or `all`, and a newline follow, because Python's interactive prompt is the same text. Source: the
 * model's chat template.
 */
export const functionaryV32: ParserFamily = {
  name: 'functionary_v3_2',
  keepTokens: [],
  create: (options) => new OutputParser(readRecipients, options),
}

function* readRecipients(
  reader: TextReader,
  delta: DeltaBuilder,
  { tools }: OutputParserOptions,
): GrammarStep<void> {
  const names = new Set(tools?.map((tool) => (tool.type === 'function' ? tool.function.name : '')))
  let mark: string | undefined = ''
  while (mark !== undefined) {
    const name = yield* reader.scan(new RunScanner(/[\w.-]*/y))
    const isHeader = (name === 'all' || names.has(name)) && (yield* reader.literal('\n'))
    if (!isHeader) delta.addContent(mark + name)
    else if (name !== 'all') yield* readCall(reader, delta, { name, header: `${mark}${name}\n` })
    mark = (yield* reader.upTo(RECIPIENT_MARKS, (text) => delta.addContent(text))).marker
  }
}

function* readCall(
  reader: TextReader,
  delta: DeltaBuilder,
  { name, header }: { name: string; header: string },
): GrammarStep<void> {
  reader.startRecord()
  const reading = yield* readArguments(reader, { name })
  const body = reader.stopRecord()
  if (!Array.isArray(reading)) return delta.addContent(header + body)
  delta.addCalls(reading)
  yield* reader.space()
}

const START = '<|start|>'
const MESSAGE = '<|message|>'
const HEADER_END = new MarkerSet([MESSAGE])
const BODY_ENDS = new MarkerSet(['<|eom|>', '<|eot|>', START])
const readAtem = createBlockGrammar({
  call: createTaggedSyntax({
    ...createInvokeTags('atem:'),
    mustClose: true,
    untyped: 'json',
    wrapper: { open: '<atem:function_calls>', close: '</atem:function_calls>' },
  }),
})

/**
 * Muse Glimmer: ` to=self<|message|>…<|eom|><|start|>assistant to=f<|message|><atem:function_calls>…<|eot|>`. A message
 * to `self` is reasoning; one to `user` or without a recipient is content. Markup of tool calls is parsed only in
 * messages to tools.
 * Sources: the model's chat template; SGLang's `muse_glimmer_detector.py`; vLLM's `muse_glimmer_tool_parser.py`.
 */
export const museGlimmer: ParserFamily = {
  name: 'muse_glimmer',
  keepTokens: [START, MESSAGE, '<|eom|>', '<|eot|>'],
  create: (options) => new OutputParser(readMessages, options),
}

function* readMessages(
  reader: TextReader,
  delta: DeltaBuilder,
  options: OutputParserOptions,
): GrammarStep<void> {
  // The prompt ends before the first header.
  let isHeader = yield* beginsHeader(reader)
  for (;;) {
    const { text: header, marker } = isHeader ? yield* reader.upTo(HEADER_END) : { text: '', marker: MESSAGE }
    if (marker === undefined) return delta.addContent(header)
    const recipient = /\bto=([^\s<]+)/.exec(header)?.[1] ?? 'user'
    const isCall = (options.tools?.length ?? 0) > 0 && !['self', 'user', 'commentary'].includes(recipient)
    const show = (text: string) => (recipient === 'self' ? delta.addReasoning(text) : delta.addContent(text))
    const { text, marker: end } = yield* reader.upTo(BODY_ENDS, isCall ? undefined : show)
    if (isCall) addCalls(text, delta, options)
    if (end === undefined) return
    isHeader = end === START || (yield* reader.literal(START))
    if (!isHeader && (yield* reader.atEnd())) return
  }
}

/**
 * Returns whether the text begins with a header: ` to=…`, or the marker after an empty header. Other text is content
 * without a header.
 */
function* beginsHeader(reader: TextReader): GrammarStep<boolean> {
  const space = yield* reader.space()
  const begun = yield* reader.oneOf(['to=', MESSAGE, START])
  reader.putBack(space + (begun ?? ''))
  return begun !== undefined
}

function addCalls(body: string, delta: DeltaBuilder, options: OutputParserOptions): void {
  const parser = new OutputParser(readAtem, options)
  for (const { content = '', toolCalls = [] } of [parser.push(body), parser.finish()]) {
    delta.addContent(content)
    for (const { function: call } of toolCalls)
      delta.addCalls([{ name: getToolName(call!.name!, options), arguments: call!.arguments! }])
  }
}

/**
 * Returns the name of the called tool. The template describes a tool's recipient as `f.*`, so the model may write
 * `f.f`.
 */
function getToolName(name: string, { tools }: OutputParserOptions): string {
  const [head, tail] = name.split('.')
  const isDoubled = head === tail && name === `${head}.${tail}`
  const isTool = (toolName: string) =>
    tools?.some((tool) => tool.type === 'function' && tool.function.name === toolName)
  return isDoubled && !isTool(name) && isTool(head!) ? head! : name
}
