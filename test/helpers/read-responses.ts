/**
 * Completions in the formats of published response templates, as `test/differential/responses.py` renders them,
 * compared with the parse results of the proxy.
 */
import { isDeepStrictEqual } from 'node:util'
import type {
  ResponseDeltas,
  ResponseTemplate,
} from '../../src/proxy/tokens/templates/python/python-responses.ts'

interface ResponseCase {
  template: string
  prefix: string
  pieces: string[]
  /** The results of transformers for the complete text and for its chunks: patterns that inspect the end may differ. */
  whole: ReadResponse
  streamed: ReadResponse
}

/** An error of transformers, or its parse result. */
type ReadResponse = { malformed: string } | ReturnType<typeof mergeDeltas>

export interface PublishedResponses {
  tools: object[]
  templates: Record<string, object>
  cases: ResponseCase[]
}

/**
 * Compares the parse results.
 * @returns the expected and actual result of each difference
 */
export function findDifferences(
  template: ResponseTemplate,
  { prefix, pieces: chunks, whole: full, streamed }: ResponseCase,
  tools: string,
): { cut: readonly string[]; expected: ReadResponse; actual: ReadResponse }[] {
  const readings = [
    { cut: [chunks.join('')], expected: full },
    { cut: chunks, expected: streamed },
  ]
  return readings.flatMap(({ cut, expected }) => {
    const actual = mergeDeltas(readChunks(template, prefix, tools, cut))
    const isEmpty = actual.content + actual.reasoning === '' && actual.calls.length === 0
    // The proxy returns as text what transformers rejects, and tool calls of transformers that no agent could make.
    const isInvalid = 'malformed' in expected || !expected.calls.every(isToolCall)
    const isSame = isInvalid ? !isEmpty : isDeepStrictEqual(actual, expected)
    return isSame ? [] : [{ cut, expected, actual }]
  })
}

function isToolCall({ name, arguments: input }: { name: unknown; arguments: unknown }): boolean {
  return typeof name === 'string' && name !== '' && input !== undefined && input !== null
}

type Delta = ResponseDeltas['deltas'][number]

export function readChunks(
  template: ResponseTemplate,
  prefix: string,
  tools: string,
  chunks: readonly string[],
): Delta[] {
  const reader = template.begin({ prefix, tools })
  const { deltas } = template.read(reader, chunks, true)
  reader.destroy()
  return deltas
}

export function mergeDeltas(deltas: readonly Delta[]) {
  return {
    content: deltas.map(({ content = '' }) => content).join(''),
    reasoning: deltas.map(({ reasoning = '' }) => reasoning).join(''),
    calls: deltas.flatMap(({ calls = [] }) =>
      calls.map((call) => ({ name: call.name, arguments: JSON.parse(call.arguments) as unknown })),
    ),
  }
}
