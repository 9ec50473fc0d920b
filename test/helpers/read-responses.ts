/** Answers by published response templates, as `test/differential/responses.py` has them, and what is read in them here. */
import { isDeepStrictEqual } from 'node:util'
import type {
  ResponseTemplate,
  ResponseTexts,
} from '../../src/proxy/tokens/templates/python/python-responses.ts'

export interface ResponseCase {
  template: string
  prefix: string
  pieces: string[]
  /** What transformers reads in the text as a whole, and in its pieces: patterns that look at the end may differ. */
  whole: Told
  streamed: Told
}

/** transformers raises an error, or: */
type Told = { malformed: string } | ReturnType<typeof toldOf>

export interface PublishedResponses {
  tools: object[]
  templates: Record<string, object>
  cases: ResponseCase[]
}

/** @returns for each difference what was wanted and found */
export function differences(
  template: ResponseTemplate,
  { prefix, pieces, whole, streamed }: ResponseCase,
  tools: string,
): { cut: readonly string[]; wanted: Told; found: Told }[] {
  const readings = [
    { cut: [pieces.join('')], wanted: whole },
    { cut: pieces, wanted: streamed },
  ]
  return readings.flatMap(({ cut, wanted }) => {
    const found = toldOf(readCut(template, prefix, tools, cut))
    const isLost = found.content + found.reasoning === '' && found.calls.length === 0
    // What transformers refuses to read is shown here, and so is what it gives as a call and no agent could make.
    const isShown = 'malformed' in wanted || !wanted.calls.every(isCall)
    const isSame = isShown ? !isLost : isDeepStrictEqual(found, wanted)
    return isSame ? [] : [{ cut, wanted, found }]
  })
}

function isCall({ name, arguments: given }: { name: unknown; arguments: unknown }): boolean {
  return typeof name === 'string' && name !== '' && given !== undefined && given !== null
}

type Delta = ResponseTexts['deltas'][number]

export function readCut(
  template: ResponseTemplate,
  prefix: string,
  tools: string,
  pieces: readonly string[],
): Delta[] {
  const answer = template.begin({ prefix, tools })
  const { deltas } = template.read(answer, pieces, true)
  answer.destroy()
  return deltas
}

export function toldOf(deltas: readonly Delta[]) {
  return {
    content: deltas.map(({ content = '' }) => content).join(''),
    reasoning: deltas.map(({ reasoning = '' }) => reasoning).join(''),
    calls: deltas.flatMap(({ calls = [] }) =>
      calls.map((call) => ({ name: call.name, arguments: JSON.parse(call.arguments) as unknown })),
    ),
  }
}
