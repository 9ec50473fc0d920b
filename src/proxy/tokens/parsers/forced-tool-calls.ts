/**
 * Parses tool calls that an engine constrains to a JSON schema: after optional reasoning, the completion is an array of
 * `{"name": …, "parameters": …}` and contains no other text, as in vLLM and SGLang.
 *
 * Engines apply the schema from the first token or, if their reasoning parser is enabled, after the reasoning.
 * Therefore a completion may begin with the array even if its prompt opened reasoning. An engine that does not apply
 * constraints returns the family's own markup, which is parsed as usual.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import { readReasoning } from './block-parser.ts'
import { readNamedCalls } from './json-tool-calls.ts'
import type { OutputToolCall } from './output-delta.ts'
import { type Grammar, OutputParser, type OutputParserOptions, type ParserFamily } from './output-parser.ts'
import type { GrammarStep, TextReader } from './text-reader.ts'

/** Creates the parser of a completion whose tool calls may be constrained. */
export function createForcedToolCallParser(family: ParserFamily, options: OutputParserOptions): OutputParser {
  const { reasoning, callBegin = [], grammar } = family
  if (grammar === undefined) return family.create(options)
  const readFreely = grammar
  const reasoningEnd = new MarkerSet(reasoning ? [reasoning.close, ...callBegin] : [])

  function* readCompletion(...[reader, delta]: Parameters<Grammar>): GrammarStep<void> {
    const first = yield* readCalls(reader)
    if (Array.isArray(first)) return delta.addCalls(first)
    reader.putBack(first)
    const space = yield* reader.space()
    const mayOpen = reasoning !== undefined && !options.startsInContent
    const opened = options.startsInReasoning || (mayOpen && (yield* reader.literal(reasoning.open)))
    if (!opened) {
      reader.putBack(space)
      return yield* readFreely(reader, delta, options)
    }
    const end = yield* readReasoning(reader, delta, { open: reasoning!.open, ends: reasoningEnd })
    if (end !== undefined && end !== reasoning!.close) {
      reader.putBack(end)
      return yield* readFreely(reader, delta, { ...options, startsInReasoning: true })
    }
    const next = yield* readCalls(reader)
    if (Array.isArray(next)) return delta.addCalls(next)
    reader.putBack(next)
    yield* readFreely(reader, delta, { ...options, startsInReasoning: false })
  }

  return new OutputParser(readCompletion, options)
}

/**
 * Reads tool calls up to the end of the text. @returns the tool calls; the text that was read if it contains anything
 * else
 */
function* readCalls(reader: TextReader): GrammarStep<OutputToolCall[] | string> {
  reader.startRecord()
  const reading = yield* readNamedCalls(reader, { name: 'name', arguments: ['parameters'] })
  yield* reader.space()
  const isAll = yield* reader.atEnd()
  const record = reader.stopRecord()
  return Array.isArray(reading) && isAll ? reading : record
}
