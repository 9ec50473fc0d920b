/**
 * Apertus' tool calls: `<|tools_prefix|>[{"f": {…}}, {"g": {…}}]<|tools_suffix|>`, reasoning in
 * `<|inner_prefix|>…<|inner_suffix|>`.
 * Sources: the chat template of Apertus-8B; SGLang's `apertus2509_detector.py`.
 */
import { type BlockReading, blockFamily } from './block-parser.ts'
import { readObject } from './json-calls.ts'
import type { WrittenCall } from './parsed-delta.ts'
import type { Reading, TextReader } from './text-reader.ts'

const CLOSE = '<|tools_suffix|>'

export const apertus = blockFamily('apertus', [], {
  reasoning: { open: '<|inner_prefix|>', close: '<|inner_suffix|>' },
  call: { opens: ['<|tools_prefix|>'], close: CLOSE, read: readCalls },
})

function* readCalls(reader: TextReader): Reading<BlockReading> {
  yield* reader.space()
  if (!(yield* reader.literal('['))) return 'malformed'
  const calls: WrittenCall[] = []
  let isCalls = true
  do {
    const object = yield* readObject(reader)
    if (object === undefined) return 'misread'
    const [[name, written] = ['', '']] = object.members
    isCalls &&= object.members.size === 1 && written.startsWith('{')
    calls.push({ name, arguments: written })
    yield* reader.space()
  } while (yield* reader.literal(','))
  if (!(yield* reader.literal(']'))) return 'misread'
  yield* reader.space()
  yield* reader.literal(CLOSE)
  return isCalls ? calls : 'malformed'
}
