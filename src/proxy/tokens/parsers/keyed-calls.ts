/** Calls whose parameters are pairs of elements, one with the name and one with the value, as GLM writes them. */
import { MarkerSet } from '../tokenizer/markers.ts'
import type { BlockOptions, BlockReading, CallSyntax, Markers } from './block-parser.ts'
import { jsonOfTextArguments, type TextArgument } from './text-arguments.ts'
import { type Reading, RunScanner, type TextReader } from './text-reader.ts'

interface KeyedTags {
  call: Markers
  key: Markers
  value: Markers
  /** What may end the name of the function. */
  nameEnd?: string
}

/** The markers that stand inside a call. */
export function keyedMarkers({ key, value, nameEnd }: KeyedTags): string[] {
  return [key.open, key.close, value.open, value.close, ...(nameEnd ? [nameEnd] : [])]
}

export function keyedCallSyntax({ call, key, value, nameEnd }: KeyedTags): CallSyntax {
  const keyEnds = new MarkerSet([key.close, call.close])
  const valueEnds = new MarkerSet([value.close])
  const earlyValueEnds = new MarkerSet([value.close, call.close])

  function* readCall(reader: TextReader, { tools, closesEarly }: BlockOptions): Reading<BlockReading> {
    yield* reader.space()
    const name = (yield* reader.scan(new RunScanner(/[^<\n{]*/y))).trim()
    if (name === '') return 'malformed'
    if (nameEnd !== undefined) yield* reader.literal(nameEnd)
    const written: TextArgument[] = []
    yield* reader.space()
    while (yield* reader.literal(key.open)) {
      const { text: keyText, marker: keyEnd } = yield* reader.upTo(keyEnds)
      yield* reader.space()
      if (keyEnd !== key.close || !(yield* reader.literal(value.open))) return 'malformed'
      const { text, marker } = yield* reader.upTo(closesEarly ? earlyValueEnds : valueEnds)
      if (marker === undefined) return 'unclosed'
      if (marker !== value.close) return 'malformed'
      written.push({ name: keyText.trim(), text })
      yield* reader.space()
    }
    // What the text ends in is none: its name may be cut, and another parameter may have been to come.
    const isWhole = yield* reader.literal(call.close)
    return isWhole ? [{ name, arguments: jsonOfTextArguments(name, written, tools) }] : 'malformed'
  }

  return { opens: [call.open], close: call.close, read: readCall }
}
