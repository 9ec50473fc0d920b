/**
 * Completions in the formats of published response templates, as `test/differential/responses.py` renders them,
 * compared with the parse results of the proxy.
 */
import { isDeepStrictEqual } from 'node:util'
import type {
  ResponseDeltas,
  ResponseTemplate,
} from '../../src/proxy/tokens/templates/python/python-responses.ts'

export interface ResponseCase {
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
export function differences(
  template: ResponseTemplate,
  { prefix, pieces: chunks, whole: full, streamed }: ResponseCase,
  tools: string,
): { cut: readonly string[]; wanted: ReadResponse; found: ReadResponse }[] {
  const readings = [
    { cut: [chunks.join('')], wanted: full },
    { cut: chunks, wanted: streamed },
  ]
  return readings.flatMap(({ cut, wanted }) => {
    const found = mergeDeltas(readCut(template, prefix, tools, cut))
    const isLost = found.content + found.reasoning === '' && found.calls.length === 0
    // Output that transformers rejects is shown here as text, and so is a tool call that it returns but no agent could
    // make.
    const isShown = 'malformed' in wanted || !wanted.calls.every(isCall)
    const isSame = isShown ? !isLost : isDeepStrictEqual(found, wanted)
    return isSame ? [] : [{ cut, wanted, found }]
  })
}

function isCall({ name, arguments: input }: { name: unknown; arguments: unknown }): boolean {
  return typeof name === 'string' && name !== '' && input !== undefined && input !== null
}

type Delta = ResponseDeltas['deltas'][number]

export function readCut(
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
