/**
 * Mistral's tool calls: `[TOOL_CALLS][{"name": "f", "arguments": {…}}]`; since tokenizer version 11 `[TOOL_CALLS]f{…}`,
 * since 13 `[TOOL_CALLS]f[CALL_ID]id[ARGS]{…}`. There is no closing marker: a call ends with its JSON.
 * Sources: mistral-common's tokenizers; vLLM's `parser/mistral.py`.
 */
import { randomBytes } from 'node:crypto'
import { type BlockResult, type BlockSyntax, createBlockFamily, createBlockGrammar } from './block-parser.ts'
import { decodeString, readArguments, readNamedCalls, type ToolCallKeys } from './json-tool-calls.ts'
import { OutputParser, type ParserFamily } from './output-parser.ts'
import { type GrammarStep, RunScanner, type TextReader } from './text-reader.ts'

const SYNTAX: BlockSyntax = {
  reasoning: { open: '[THINK]', close: '[/THINK]', callEndsIt: true },
  call: { opens: ['[TOOL_CALLS]'], read: readCalls },
}

export const mistral: ParserFamily = {
  ...createBlockFamily('mistral', ['[CALL_ID]', '[ARGS]'], SYNTAX),
  create: (options) =>
    new OutputParser(createBlockGrammar(SYNTAX), { makeToolCallId: createMistralId, ...options }),
}

const KEYS: ToolCallKeys = {
  name: 'name',
  arguments: ['arguments'],
  toArguments: (json) => (json === 'null' ? '{}' : decodeString(json)),
}

function* readCalls(reader: TextReader): GrammarStep<BlockResult> {
  yield* reader.space()
  const name = yield* reader.scan(new RunScanner(/[\w.-]*/y))
  if (name === '') {
    const reading = yield* readNamedCalls(reader, KEYS)
    return Array.isArray(reading) ? reading.map(withoutInvalidId) : reading
  }
  const id = (yield* reader.literal('[CALL_ID]')) ? yield* reader.scan(new RunScanner(/\w*/y)) : ''
  yield* reader.literal('[ARGS]')
  return yield* readArguments(reader, withoutInvalidId({ name, id }))
}

/**
 * Removes an id that does not consist of nine letters and digits, because Mistral's templates reject it. A random id
 * replaces it.
 */
function withoutInvalidId<Call extends { id?: string }>({ id, ...call }: Call) {
  return { ...call, ...(id !== undefined && /^[0-9A-Za-z]{9}$/.test(id) && { id }) }
}

function createMistralId(): string {
  return randomBytes(5).toString('hex').slice(0, 9)
}
