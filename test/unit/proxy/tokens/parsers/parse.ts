/** Parses for tests: with tools, with predictable ids, and in chunks. */
import fc from 'fast-check'
import type { Tool } from '../../../../../src/protocol/canonical/messages.ts'
import type {
  OutputParserOptions,
  ParserFamily,
} from '../../../../../src/proxy/tokens/parsers/output-parser.ts'
import { mergeDeltas, type ParsedOutput, parseWhole } from '../../../../helpers/parsed-output.ts'
import { limitRuns } from '../../../../helpers/tier.ts'

export const TOOLS: Tool[] = [{ type: 'function', function: { name: 'f' } }]

function withTestDefaults(options: OutputParserOptions): OutputParserOptions {
  let calls = 0
  return { tools: TOOLS, makeToolCallId: () => `id_${calls++}`, ...options }
}

export function parse(family: ParserFamily, text: string, options: OutputParserOptions = {}): ParsedOutput {
  return parseWhole(family.create(withTestDefaults(options)), text)
}

/** The result of {@link parse} in a short form: tool calls as `name(arguments)`. */
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

/**
 * Checks that texts made of `fragments` in any order parse the same for any chunks, and that no part is sent
 * twice or invented.
 */
export function assertCutsChangeNothing(
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
        const deltas = cutInto(text, sizes).map((chunk) => parser.push(chunk))
        const merged = mergeDeltas([...deltas, parser.finish()])
        return JSON.stringify(merged) === JSON.stringify(full)
      },
    ),
    { numRuns: limitRuns(numRuns) },
  )
}

/** Chunks of the given sizes, repeated; of one character each if there are none. */
function cutInto(text: string, sizes: readonly number[]): string[] {
  const chunks: string[] = []
  for (let from = 0, turn = 0; from < text.length; turn++) {
    const size = sizes[turn % sizes.length] ?? 1
    chunks.push(text.slice(from, from + size))
    from += size
  }
  return chunks
}
