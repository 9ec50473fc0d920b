/** Parsing for tests: with tools, with predictable ids, and in chunks. */
import fc from 'fast-check'
import type { Tool } from '../../../../../src/protocol/canonical/messages.ts'
import type {
  OutputParserOptions,
  ParserFamily,
} from '../../../../../src/proxy/tokens/parsers/output-parser.ts'
import { mergeDeltas, type ParsedOutput, parseComplete } from '../../../../helpers/parsed-output.ts'
import { limitRuns } from '../../../../helpers/tier.ts'

export const TOOLS: Tool[] = [{ type: 'function', function: { name: 'f' } }]

function withTestDefaults(options: OutputParserOptions): OutputParserOptions {
  let calls = 0
  return { tools: TOOLS, makeToolCallId: () => `id_${calls++}`, ...options }
}

export function parse(family: ParserFamily, text: string, options: OutputParserOptions = {}): ParsedOutput {
  return parseComplete(family.create(withTestDefaults(options)), text)
}

/** Returns the result of {@link parse} in a short form, with tool calls as `name(arguments)`. */
export function parseBriefly(family: ParserFamily, text: string, options: OutputParserOptions = {}) {
  const { content, reasoning, toolCalls } = parse(family, text, options)
  return {
    ...(content && { content }),
    ...(reasoning && { reasoning }),
    ...(toolCalls.length > 0 && {
      calls: toolCalls.map((call) => `${call.function.name}(${call.function.arguments})`),
    }),
  }
}

/** Asserts that texts made of `fragments` in any order have the same result in any chunks. */
export function assertSameForAnyChunks(
  family: ParserFamily,
  fragments: readonly string[],
  numRuns = 1000,
): void {
  const text = fc.array(fc.constantFrom(...fragments), { maxLength: 12 }).map((parts) => parts.join(''))
  fc.assert(
    fc.property(
      text,
      fc.boolean(),
      fc.array(fc.integer({ min: 1, max: 9 })),
      (text, startsInReasoning, sizes) => {
        const full = parse(family, text, { startsInReasoning })
        const parser = family.create(withTestDefaults({ startsInReasoning }))
        const deltas = splitIntoChunks(text, sizes).map((chunk) => parser.push(chunk))
        const merged = mergeDeltas([...deltas, parser.finish()])
        return JSON.stringify(merged) === JSON.stringify(full)
      },
    ),
    { numRuns: limitRuns(numRuns) },
  )
}

/** Splits a text into chunks of the given sizes, repeated; of one character each if there are none. */
function splitIntoChunks(text: string, sizes: readonly number[]): string[] {
  const chunks: string[] = []
  for (let from = 0, index = 0; from < text.length; index++) {
    const size = sizes[index % sizes.length] ?? 1
    chunks.push(text.slice(from, from + size))
    from += size
  }
  return chunks
}
